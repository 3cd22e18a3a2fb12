#include "transports/gloo/stages.h"

#include <shardrun/sdk/collectives.hpp>

#include <cstring>
#include <utility>
#include <vector>

namespace shardrun::gloo_transport {
namespace {

using sdk::OpSpec;

/// One message of a stage. `buffer` is there where it is too long for a letter.
struct Message {
  std::uint32_t peer = 0;
  unsigned char* data = nullptr;
  std::uint64_t bytes = 0;
  GlooBuffer buffer;
};

struct MessageStage {
  std::vector<Message> sends;
  std::vector<Message> receives;
  std::vector<sdk::LocalStep> steps;
};

class StagedOp final : public sdk::Op, private Job {
 public:
  StagedOp(StageBoxes& boxes, Lane& lane, std::unique_ptr<Call> call, const OpSpec& op)
      : Job(lane, describe(op), (op.flags & SR_OP_FLAG_BLOCKING) != 0),
        boxes_(boxes),
        lane_(lane),
        call_(std::move(call)),
        places_(op, op.dtype) {
    const sdk::Schedule schedule = schedule_of(op, boxes.mesh.rank(), boxes.mesh.size());
    require_scratch(op, schedule);
    places_ = sdk::Places(op, schedule.dtype);
    for (const sdk::Stage& stage : schedule.stages) {
      stages_.push_back({messages(stage.sends), messages(stage.receives), stage.steps});
    }
  }
  ~StagedOp() override { lane_.drop(*this); }

  void start(void*, std::int64_t deadline) override { lane_.start(*this, deadline); }
  bool test() override { return lane_.test(*this); }
  bool wait(std::int64_t deadline) override { return lane_.wait(*this, deadline); }

 private:
  [[nodiscard]] std::vector<Message> messages(const std::vector<sdk::Movement>& movements) const {
    std::vector<Message> made;
    for (const sdk::Movement& movement : movements) {
      Message& message = made.emplace_back();
      message.peer = movement.peer;
      message.data = places_.data(movement.region);
      message.bytes = places_.bytes(movement.region);
      if (message.bytes > letter_bytes) {
        message.buffer = boxes_.mesh.buffer(message.data, message.bytes);
      }
    }
    return made;
  }

  void execute() override {
    for (MessageStage& stage : stages_) {
      begin(stage);
      finish(stage);
      for (const sdk::LocalStep& step : stage.steps) {
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
      if (message.buffer) {
        boxes_.mesh.receive(*message.buffer, message.peer, data_slot(), message.bytes);
      }
    }
    for (const Message& message : stage.sends) {
      if (message.buffer) {
        boxes_.mesh.send(*message.buffer, message.peer, data_slot(), message.bytes);
      } else {
        Letter& letter = boxes_.out[message.peer].compose();
        letter.head = {.id = call_->serial(), .bytes = message.bytes};
        std::memcpy(letter.bytes, message.data, message.bytes);
        boxes_.out[message.peer].send();
      }
    }
  }

  void finish(MessageStage& stage) {
    for (const Message& message : stage.receives) {
      if (message.buffer) {
        boxes_.mesh.wait_received(*message.buffer, message.peer);
      } else {
        const Letter& letter = boxes_.in[message.peer].next();
        call_->require(boxes_.mesh, message.peer, letter.head, message.bytes);
        std::memcpy(message.data, letter.bytes, message.bytes);
        boxes_.in[message.peer].recycle();
      }
    }
    for (const Message& message : stage.sends) {
      if (message.buffer) {
        boxes_.mesh.wait_sent(*message.buffer, message.peer);
      }
    }
  }

  [[nodiscard]] std::uint64_t data_slot() const noexcept { return slot_of(Stream::stage_data, call_->serial()); }

  StageBoxes& boxes_;
  Lane& lane_;
  std::unique_ptr<Call> call_;
  sdk::Places places_;
  std::vector<MessageStage> stages_;
};

}  // namespace

StageBoxes::StageBoxes(Mesh& connections)
    : mesh(connections), out(connections, Stream::stage), in(connections, Stream::stage, std::size_t{1}) {}

std::unique_ptr<sdk::Op> make_staged_op(StageBoxes& boxes, Lane& lane, std::unique_ptr<Call> call, const OpSpec& op) {
  return std::make_unique<StagedOp>(boxes, lane, std::move(call), op);
}

}  // namespace shardrun::gloo_transport
