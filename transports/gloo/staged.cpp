#include "transports/gloo/staged.h"

#include <shardrun/sdk/transport/collectives.hpp>

#include <algorithm>
#include <cstring>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

namespace shardrun::gloo_transport {
namespace {

using sdk::OpSpec;

/// One message of a stage. A message longer than eager_bytes goes in pieces, all of one size except the last. Without
/// pieces it is eager.
struct StagedMessage {
  std::uint32_t peer = 0;
  unsigned char* data = nullptr;
  std::uint64_t bytes = 0;
  std::vector<GlooBuffer> pieces;
};

struct MessageStage {
  std::vector<StagedMessage> sends;
  std::vector<StagedMessage> receives;
  std::vector<sdk::LocalStep> early;               ///< run while messages are in transfer
  std::optional<sdk::LocalStep> as_pieces_arrive;  ///< reduces the only receive, piece by piece
  std::vector<sdk::LocalStep> late;
};

bool overlap(const unsigned char* a, std::uint64_t a_bytes, const unsigned char* b, std::uint64_t b_bytes) {
  const std::less<const unsigned char*> before;
  return before(a, b + b_bytes) && before(b, a + a_bytes);
}

class StagedOp final : public sdk::Op, private QueuedOp {
 public:
  StagedOp(StagedMessages& messages, OpQueue& queue, std::unique_ptr<PreparedCollective> prepared, const OpSpec& op)
      : QueuedOp(queue, describe(op), (op.flags & SR_OP_FLAG_BLOCKING) != 0),
        eager_(messages),
        queue_(queue),
        prepared_(std::move(prepared)),
        buffers_(op, op.dtype),
        chunk_(sdk::find_opcode(op.opcode)->reduces ? messages.chunk : UINT64_MAX) {
    const sdk::Schedule schedule = schedule_of(op, messages.mesh.rank(), messages.mesh.size());
    require_scratch(op, schedule);
    buffers_ = sdk::OpBuffers(op, schedule.dtype);
    element_ = sdk::dtype_size(schedule.dtype);
    for (const sdk::ScheduleStage& stage : schedule.stages) {
      add(stage);
    }
  }
  ~StagedOp() override { queue_.drop(*this); }

  void start(void*, sdk::Deadline deadline) override { queue_.start(*this, deadline); }
  bool test() override { return queue_.test(*this); }
  bool wait(sdk::Deadline deadline) override { return queue_.wait(*this, deadline); }
  std::optional<sdk::OpTimes> times() const override { return times_of_run(); }

 private:
  [[nodiscard]] std::vector<StagedMessage> messages(const std::vector<sdk::Movement>& movements) const {
    std::vector<StagedMessage> made;
    for (const sdk::Movement& movement : movements) {
      StagedMessage& message = made.emplace_back();
      message.peer = movement.peer;
      message.data = buffers_.data(movement.region);
      message.bytes = buffers_.bytes(movement.region);
      for (std::uint64_t at = 0; at < message.bytes && message.bytes > eager_bytes;
           at += std::min(chunk_, message.bytes)) {
        message.pieces.push_back(eager_.mesh.buffer(message.data + at, piece_bytes(message, at / chunk_)));
      }
    }
    return made;
  }

  [[nodiscard]] std::uint64_t piece_bytes(const StagedMessage& message, std::uint64_t piece) const {
    return std::min(chunk_, message.bytes - piece * chunk_);
  }

  /// Keeps the order of the steps. Each runs as early as the ones before it and the messages allow.
  void add(const sdk::ScheduleStage& schedule) {
    MessageStage& stage = stages_.emplace_back();
    stage.sends = messages(schedule.sends);
    stage.receives = messages(schedule.receives);
    for (const sdk::LocalStep& step : schedule.steps) {
      if (stage.late.empty() && !stage.as_pieces_arrive && is_free(stage, step)) {
        stage.early.push_back(step);
      } else if (stage.late.empty() && !stage.as_pieces_arrive && follows_pieces(stage, step)) {
        stage.as_pieces_arrive = step;
      } else {
        stage.late.push_back(step);
      }
    }
  }

  /// Whether a step neither accesses received blocks nor writes sent ones.
  [[nodiscard]] bool is_free(const MessageStage& stage, const sdk::LocalStep& step) const {
    const auto touches = [&](const sdk::BufferRegion& region) {
      return [this, &region](const StagedMessage& message) {
        return overlap(buffers_.data(region), buffers_.bytes(region), message.data, message.bytes);
      };
    };
    return std::ranges::none_of(
               step.from,
               [&](const sdk::BufferRegion& from) { return std::ranges::any_of(stage.receives, touches(from)); }) &&
           std::ranges::none_of(stage.receives, touches(step.to)) &&
           std::ranges::none_of(stage.sends, touches(step.to));
  }

  /// Whether a step reduces exactly the received block with something else.
  [[nodiscard]] bool follows_pieces(const MessageStage& stage, const sdk::LocalStep& step) const {
    if (stage.receives.size() != 1 || stage.receives[0].pieces.empty() || !step.reduces) {
      return false;
    }
    const StagedMessage& message = stage.receives[0];
    const auto is_message = [&](const sdk::BufferRegion& region) {
      return buffers_.data(region) == message.data && buffers_.bytes(region) == message.bytes;
    };
    return (std::ranges::any_of(step.from, is_message) || is_message(step.to)) &&
           std::ranges::none_of(stage.sends, [&](const StagedMessage& sent) {
             return overlap(buffers_.data(step.to), buffers_.bytes(step.to), sent.data, sent.bytes);
           });
  }

  void execute() override {
    for (MessageStage& stage : stages_) {
      begin(stage);
      for (const sdk::LocalStep& step : stage.early) {
        buffers_.run(step);
      }
      finish(stage);
      for (const sdk::LocalStep& step : stage.late) {
        buffers_.run(step);
      }
    }
    for (const MessageStage& stage : stages_) {
      for (const StagedMessage& message : stage.sends) {
        eager_.out[message.peer].wait();
      }
    }
  }

  void begin(MessageStage& stage) {
    for (const StagedMessage& message : stage.receives) {
      for (std::size_t i = 0; i < message.pieces.size(); ++i) {
        eager_.mesh.receive(*message.pieces[i], message.peer, data_slot(), piece_bytes(message, i));
      }
    }
    for (const StagedMessage& message : stage.sends) {
      for (std::size_t i = 0; i < message.pieces.size(); ++i) {
        eager_.mesh.send(*message.pieces[i], message.peer, data_slot(), piece_bytes(message, i));
      }
      if (message.pieces.empty()) {
        EagerMessage& eager = eager_.out[message.peer].compose();
        eager.header = {.id = prepared_->serial(), .bytes = message.bytes};
        std::memcpy(eager.bytes, message.data, message.bytes);
        eager_.out[message.peer].send();
      }
    }
  }

  void finish(MessageStage& stage) {
    for (const StagedMessage& message : stage.receives) {
      for (std::size_t i = 0; i < message.pieces.size(); ++i) {
        eager_.mesh.wait_received(*message.pieces[i], message.peer);
        if (stage.as_pieces_arrive) {
          buffers_.run(*stage.as_pieces_arrive, i * chunk_ / element_, piece_bytes(message, i) / element_);
        }
      }
      if (message.pieces.empty()) {
        const EagerMessage& eager = eager_.in[message.peer].next();
        prepared_->require(eager_.mesh, message.peer, eager.header, message.bytes);
        std::memcpy(message.data, eager.bytes, message.bytes);
        eager_.in[message.peer].recycle();
      }
    }
    for (const StagedMessage& message : stage.sends) {
      for (const GlooBuffer& piece : message.pieces) {
        eager_.mesh.wait_sent(*piece, message.peer);
      }
    }
  }

  [[nodiscard]] std::uint64_t data_slot() const noexcept { return slot_of(Channel::stage_data, prepared_->serial()); }

  StagedMessages& eager_;
  OpQueue& queue_;
  std::unique_ptr<PreparedCollective> prepared_;
  sdk::OpBuffers buffers_;
  std::uint64_t element_ = 1;
  std::uint64_t chunk_;  ///< bytes of a piece; unlimited where nothing is reduced, as pieces gain nothing there
  std::vector<MessageStage> stages_;
};

}  // namespace

StagedMessages::StagedMessages(FullMesh& connections, std::uint64_t chunk_bytes)
    : mesh(connections),
      chunk(chunk_bytes),
      out(connections, Channel::stage),
      in(connections, Channel::stage, std::size_t{1}) {}

std::unique_ptr<sdk::Op> make_staged_op(StagedMessages& messages, OpQueue& queue,
                                        std::unique_ptr<PreparedCollective> prepared, const OpSpec& op) {
  return std::make_unique<StagedOp>(messages, queue, std::move(prepared), op);
}

}  // namespace shardrun::gloo_transport
