#include "transports/gloo/point_to_point.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

namespace shardrun::gloo_transport {
namespace {

using sdk::OpSpec;

/// One send or receive. It has a `buffer` where the message is longer than eager_bytes.
struct PeerTransfer {
  std::uint32_t peer = 0;
  std::uint64_t id = 0;
  void* data = nullptr;
  std::uint64_t bytes = 0;
  GlooBuffer buffer;
  std::unique_ptr<EagerSender> message;  ///< of a send
};

std::string what_of(std::span<const OpSpec> ops) {
  const std::string first = describe(ops[0]);
  return ops.size() == 1 ? first : first + " and " + std::to_string(ops.size() - 1) + " more";
}

class BatchOp final : public sdk::Op, private QueuedOp {
 public:
  BatchOp(PointToPoint& point_to_point, OpQueue& queue, std::span<const OpSpec> ops)
      : QueuedOp(queue, what_of(ops), (ops[0].flags & SR_OP_FLAG_BLOCKING) != 0),
        point_to_point_(point_to_point),
        queue_(queue) {
    for (const OpSpec& op : ops) {
      if (op.count != 0) {
        add(op);
      }
    }
  }
  ~BatchOp() override { queue_.drop(*this); }

  void start(void*, sdk::Deadline deadline) override { queue_.start(*this, deadline); }
  bool test() override { return queue_.test(*this); }
  bool wait(sdk::Deadline deadline) override { return queue_.wait(*this, deadline); }
  std::optional<sdk::OpTimes> times() const override { return times_of_run(); }

 private:
  void add(const OpSpec& op) {
    const bool sends = op.opcode == SR_OP_SEND;
    PeerTransfer& transfer = (sends ? sends_ : receives_).emplace_back();
    transfer.peer = op.peer;
    transfer.id = op.id;
    transfer.data = sends ? op.send->data : op.recv->data;
    transfer.bytes = op.count * sdk::dtype_size(op.dtype);
    if (transfer.bytes > eager_bytes) {
      transfer.buffer = point_to_point_.mesh().buffer(transfer.data, transfer.bytes);
    }
    if (sends) {
      transfer.message = std::make_unique<EagerSender>(point_to_point_.mesh(), op.peer, Channel::messages);
    }
  }

  /// Starts all sends before it waits for anything. So members with different orders cannot deadlock.
  void execute() override {
    for (const PeerTransfer& transfer : sends_) {
      send(transfer);
    }
    for (const PeerTransfer& transfer : receives_) {
      receive(transfer);
    }
    for (const PeerTransfer& transfer : receives_) {
      if (transfer.buffer) {
        point_to_point_.mesh().wait_received(*transfer.buffer, transfer.peer);
      }
    }
    for (const PeerTransfer& transfer : sends_) {
      transfer.message->wait();
      if (transfer.buffer) {
        point_to_point_.mesh().wait_sent(*transfer.buffer, transfer.peer);
      }
    }
  }

  void send(const PeerTransfer& transfer) {
    EagerMessage& message = transfer.message->compose();
    message.header = {.id = transfer.id, .bytes = transfer.bytes};
    if (transfer.buffer) {
      message.header.slot = point_to_point_.new_slot(transfer.peer);
      point_to_point_.mesh().send(*transfer.buffer, transfer.peer, message.header.slot, transfer.bytes);
    } else {
      std::memcpy(message.bytes, transfer.data, transfer.bytes);
    }
    transfer.message->send();
  }

  void receive(const PeerTransfer& transfer) {
    const EagerMessage& message = point_to_point_.match(transfer.peer, transfer.id);
    require_message(point_to_point_.mesh(), transfer.peer, message.header, transfer.id, transfer.bytes);
    if (transfer.buffer) {
      point_to_point_.mesh().receive(*transfer.buffer, transfer.peer, message.header.slot, transfer.bytes);
    } else {
      std::memcpy(transfer.data, message.bytes, transfer.bytes);
    }
    point_to_point_.release(transfer.peer);
  }

  PointToPoint& point_to_point_;
  OpQueue& queue_;
  std::vector<PeerTransfer> sends_;
  std::vector<PeerTransfer> receives_;
};

}  // namespace

PointToPoint::PointToPoint(FullMesh& mesh)
    : mesh_(mesh), in_(mesh, Channel::messages, std::size_t{1}), unexpected_(mesh.size()), sent_(mesh.size()) {}

const EagerMessage& PointToPoint::match(std::uint32_t peer, std::uint64_t id) {
  std::deque<std::unique_ptr<EagerMessage>>& unexpected = unexpected_[peer];
  const auto kept =
      std::find_if(unexpected.begin(), unexpected.end(), [&](const auto& message) { return message->header.id == id; });
  if (kept != unexpected.end()) {
    matched_ = std::move(*kept);
    unexpected.erase(kept);
    return *matched_;
  }
  for (;;) {
    const EagerMessage& message = in_[peer].next();
    if (message.header.id == id) {
      return message;
    }
    unexpected.push_back(std::make_unique<EagerMessage>(message));
    in_[peer].recycle();
  }
}

std::unique_ptr<sdk::Op> make_batch_op(PointToPoint& point_to_point, OpQueue& queue, std::span<const OpSpec> ops) {
  return std::make_unique<BatchOp>(point_to_point, queue, ops);
}

}  // namespace shardrun::gloo_transport
