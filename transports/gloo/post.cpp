#include "transports/gloo/post.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>

namespace shardrun::gloo_transport {
namespace {

using sdk::OpSpec;

/// One side of a message. `buffer` is there where it is too long for a letter.
struct Transfer {
  std::uint32_t peer = 0;
  std::uint64_t id = 0;
  void* data = nullptr;
  std::uint64_t bytes = 0;
  GlooBuffer buffer;
  std::unique_ptr<Outgoing> letter;  ///< of a send
};

std::string what_of(std::span<const OpSpec> ops) {
  const std::string first = describe(ops[0]);
  return ops.size() == 1 ? first : first + " and " + std::to_string(ops.size() - 1) + " more";
}

class BatchOp final : public sdk::Op, private Job {
 public:
  BatchOp(Post& post, Lane& lane, std::span<const OpSpec> ops)
      : Job(lane, what_of(ops), (ops[0].flags & SR_OP_FLAG_BLOCKING) != 0), post_(post), lane_(lane) {
    for (const OpSpec& op : ops) {
      if (op.count != 0) {
        add(op);
      }
    }
  }
  ~BatchOp() override { lane_.drop(*this); }

  void start(void*, std::int64_t deadline) override { lane_.start(*this, deadline); }
  bool test() override { return lane_.test(*this); }
  bool wait(std::int64_t deadline) override { return lane_.wait(*this, deadline); }
  std::optional<sdk::OpTimes> times() const override { return times_of_run(); }

 private:
  void add(const OpSpec& op) {
    const bool sends = op.opcode == SR_OP_SEND;
    Transfer& transfer = (sends ? sends_ : receives_).emplace_back();
    transfer.peer = op.peer;
    transfer.id = op.id;
    transfer.data = sends ? op.send->data : op.recv->data;
    transfer.bytes = op.count * sdk::dtype_size(op.dtype);
    if (transfer.bytes > letter_bytes) {
      transfer.buffer = post_.mesh().buffer(transfer.data, transfer.bytes);
    }
    if (sends) {
      transfer.letter = std::make_unique<Outgoing>(post_.mesh(), op.peer, Stream::letters);
    }
  }

  /// All sends are under way before anything is waited for: whatever order the members have, nobody waits in a circle.
  void execute() override {
    for (const Transfer& transfer : sends_) {
      send(transfer);
    }
    for (const Transfer& transfer : receives_) {
      receive(transfer);
    }
    for (const Transfer& transfer : receives_) {
      if (transfer.buffer) {
        post_.mesh().wait_received(*transfer.buffer, transfer.peer);
      }
    }
    for (const Transfer& transfer : sends_) {
      transfer.letter->wait();
      if (transfer.buffer) {
        post_.mesh().wait_sent(*transfer.buffer, transfer.peer);
      }
    }
  }

  void send(const Transfer& transfer) {
    Letter& letter = transfer.letter->compose();
    letter.head = {.id = transfer.id, .bytes = transfer.bytes};
    if (transfer.buffer) {
      letter.head.slot = post_.new_slot(transfer.peer);
      post_.mesh().send(*transfer.buffer, transfer.peer, letter.head.slot, transfer.bytes);
    } else {
      std::memcpy(letter.bytes, transfer.data, transfer.bytes);
    }
    transfer.letter->send();
  }

  void receive(const Transfer& transfer) {
    const Letter& letter = post_.take(transfer.peer, transfer.id);
    require_letter(post_.mesh(), transfer.peer, letter.head, transfer.id, transfer.bytes);
    if (transfer.buffer) {
      post_.mesh().receive(*transfer.buffer, transfer.peer, letter.head.slot, transfer.bytes);
    } else {
      std::memcpy(transfer.data, letter.bytes, transfer.bytes);
    }
    post_.done(transfer.peer);
  }

  Post& post_;
  Lane& lane_;
  std::vector<Transfer> sends_;
  std::vector<Transfer> receives_;
};

}  // namespace

Post::Post(Mesh& mesh)
    : mesh_(mesh), in_(mesh, Stream::letters, std::size_t{1}), aside_(mesh.size()), sent_(mesh.size()) {}

const Letter& Post::take(std::uint32_t peer, std::uint64_t id) {
  std::deque<std::unique_ptr<Letter>>& aside = aside_[peer];
  const auto kept = std::find_if(aside.begin(), aside.end(), [&](const auto& letter) { return letter->head.id == id; });
  if (kept != aside.end()) {
    taken_ = std::move(*kept);
    aside.erase(kept);
    return *taken_;
  }
  for (;;) {
    const Letter& letter = in_[peer].next();
    if (letter.head.id == id) {
      return letter;
    }
    aside.push_back(std::make_unique<Letter>(letter));
    in_[peer].recycle();
  }
}

std::unique_ptr<sdk::Op> make_batch_op(Post& post, Lane& lane, std::span<const OpSpec> ops) {
  return std::make_unique<BatchOp>(post, lane, ops);
}

}  // namespace shardrun::gloo_transport
