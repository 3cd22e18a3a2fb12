#include "transports/gloo/stages.h"

#include <shardrun/sdk/collectives.hpp>

#include <algorithm>
#include <cstring>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

namespace shardrun::gloo_transport {
namespace {

using sdk::OpSpec;

/// One message of a stage. Where it is too long for a letter it goes in pieces, all but the last of one
/// size; without pieces it is a letter.
struct Message {
  std::uint32_t peer = 0;
  unsigned char* data = nullptr;
  std::uint64_t bytes = 0;
  std::vector<GlooBuffer> pieces;
};

struct MessageStage {
  std::vector<Message> sends;
  std::vector<Message> receives;
  std::vector<sdk::LocalStep> early;               ///< while messages are under way
  std::optional<sdk::LocalStep> as_pieces_arrive;  ///< of the only receive
  std::vector<sdk::LocalStep> late;
};

bool overlap(const unsigned char* a, std::uint64_t a_bytes, const unsigned char* b, std::uint64_t b_bytes) {
  const std::less<const unsigned char*> before;
  return before(a, b + b_bytes) && before(b, a + a_bytes);
}

class StagedOp final : public sdk::Op, private Job {
 public:
  StagedOp(StageBoxes& boxes, Lane& lane, std::unique_ptr<Call> call, const OpSpec& op)
      : Job(lane, describe(op), (op.flags & SR_OP_FLAG_BLOCKING) != 0),
        boxes_(boxes),
        lane_(lane),
        call_(std::move(call)),
        places_(op, op.dtype),
        chunk_(sdk::find_opcode(op.opcode)->reduces ? boxes.chunk : UINT64_MAX) {
    const sdk::Schedule schedule = schedule_of(op, boxes.mesh.rank(), boxes.mesh.size());
    require_scratch(op, schedule);
    places_ = sdk::Places(op, schedule.dtype);
    element_ = sdk::dtype_size(schedule.dtype);
    for (const sdk::Stage& stage : schedule.stages) {
      add(stage);
    }
  }
  ~StagedOp() override { lane_.drop(*this); }

  void start(void*, std::int64_t deadline) override { lane_.start(*this, deadline); }
  bool test() override { return lane_.test(*this); }
  bool wait(std::int64_t deadline) override { return lane_.wait(*this, deadline); }
  std::optional<sdk::OpTimes> times() const override { return times_of_run(); }

 private:
  [[nodiscard]] std::vector<Message> messages(const std::vector<sdk::Movement>& movements) const {
    std::vector<Message> made;
    for (const sdk::Movement& movement : movements) {
      Message& message = made.emplace_back();
      message.peer = movement.peer;
      message.data = places_.data(movement.region);
      message.bytes = places_.bytes(movement.region);
      for (std::uint64_t at = 0; at < message.bytes && message.bytes > letter_bytes;
           at += std::min(chunk_, message.bytes)) {
        message.pieces.push_back(boxes_.mesh.buffer(message.data + at, piece_bytes(message, at / chunk_)));
      }
    }
    return made;
  }

  [[nodiscard]] std::uint64_t piece_bytes(const Message& message, std::uint64_t piece) const {
    return std::min(chunk_, message.bytes - piece * chunk_);
  }

  /// Steps keep their order: each is as early as those before it and the messages let it be.
  void add(const sdk::Stage& schedule) {
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

  /// Whether a step neither reads nor writes what is received, nor writes what is sent.
  [[nodiscard]] bool is_free(const MessageStage& stage, const sdk::LocalStep& step) const {
    const auto touches = [&](const sdk::Region& region) {
      return [this, &region](const Message& message) {
        return overlap(places_.data(region), places_.bytes(region), message.data, message.bytes);
      };
    };
    return std::ranges::none_of(stage.receives, touches(step.from)) &&
           std::ranges::none_of(stage.receives, touches(step.to)) &&
           std::ranges::none_of(stage.sends, touches(step.to));
  }

  /// Whether a step reduces just what is received, with something else.
  [[nodiscard]] bool follows_pieces(const MessageStage& stage, const sdk::LocalStep& step) const {
    if (stage.receives.size() != 1 || stage.receives[0].pieces.empty() || !step.reduces) {
      return false;
    }
    const Message& message = stage.receives[0];
    const auto is_message = [&](const sdk::Region& region) {
      return places_.data(region) == message.data && places_.bytes(region) == message.bytes;
    };
    return (is_message(step.from) || is_message(step.to)) &&
           std::ranges::none_of(stage.sends, [&](const Message& sent) {
             return overlap(places_.data(step.to), places_.bytes(step.to), sent.data, sent.bytes);
           });
  }

  void run_piece(const sdk::LocalStep& step, std::uint64_t at, std::uint64_t bytes) const {
    sdk::LocalStep part = step;
    for (sdk::Region* region : {&part.from, &part.to}) {
      region->offset += at / element_;
      region->count = bytes / element_;
    }
    places_.run(part);
  }

  void execute() override {
    for (MessageStage& stage : stages_) {
      begin(stage);
      for (const sdk::LocalStep& step : stage.early) {
        places_.run(step);
      }
      finish(stage);
      for (const sdk::LocalStep& step : stage.late) {
        places_.run(step);
      }
    }
    for (const MessageStage& stage : stages_) {
      for (const Message& message : stage.sends) {
        boxes_.out[message.peer].wait();
      }
    }
  }

  void begin(MessageStage& stage) {
    for (const Message& message : stage.receives) {
      for (std::size_t i = 0; i < message.pieces.size(); ++i) {
        boxes_.mesh.receive(*message.pieces[i], message.peer, data_slot(), piece_bytes(message, i));
      }
    }
    for (const Message& message : stage.sends) {
      for (std::size_t i = 0; i < message.pieces.size(); ++i) {
        boxes_.mesh.send(*message.pieces[i], message.peer, data_slot(), piece_bytes(message, i));
      }
      if (message.pieces.empty()) {
        Letter& letter = boxes_.out[message.peer].compose();
        letter.head = {.id = call_->serial(), .bytes = message.bytes};
        std::memcpy(letter.bytes, message.data, message.bytes);
        boxes_.out[message.peer].send();
      }
    }
  }

  void finish(MessageStage& stage) {
    for (const Message& message : stage.receives) {
      for (std::size_t i = 0; i < message.pieces.size(); ++i) {
        boxes_.mesh.wait_received(*message.pieces[i], message.peer);
        if (stage.as_pieces_arrive) {
          run_piece(*stage.as_pieces_arrive, i * chunk_, piece_bytes(message, i));
        }
      }
      if (message.pieces.empty()) {
        const Letter& letter = boxes_.in[message.peer].next();
        call_->require(boxes_.mesh, message.peer, letter.head, message.bytes);
        std::memcpy(message.data, letter.bytes, message.bytes);
        boxes_.in[message.peer].recycle();
      }
    }
    for (const Message& message : stage.sends) {
      for (const GlooBuffer& piece : message.pieces) {
        boxes_.mesh.wait_sent(*piece, message.peer);
      }
    }
  }

  [[nodiscard]] std::uint64_t data_slot() const noexcept { return slot_of(Stream::stage_data, call_->serial()); }

  StageBoxes& boxes_;
  Lane& lane_;
  std::unique_ptr<Call> call_;
  sdk::Places places_;
  std::uint64_t element_ = 1;
  std::uint64_t chunk_;  ///< bytes of a piece: of what is only moved nothing is gained by more than one
  std::vector<MessageStage> stages_;
};

}  // namespace

StageBoxes::StageBoxes(Mesh& connections, std::uint64_t chunk_bytes)
    : mesh(connections),
      chunk(chunk_bytes),
      out(connections, Stream::stage),
      in(connections, Stream::stage, std::size_t{1}) {}

std::unique_ptr<sdk::Op> make_staged_op(StageBoxes& boxes, Lane& lane, std::unique_ptr<Call> call, const OpSpec& op) {
  return std::make_unique<StagedOp>(boxes, lane, std::move(call), op);
}

}  // namespace shardrun::gloo_transport
