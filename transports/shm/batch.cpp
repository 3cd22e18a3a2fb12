#include <algorithm>
#include <cstring>
#include <list>

#include "group.h"

// Sends and receives. A sender posts where its data is; the receiver finds the post by id, in the order of posting,
// reads the data from the sender's memory and marks the post as done, which frees the sender's buffer.

namespace shm {
namespace {

class Batch final : public shardrun::sdk::Op, private Worker::Task {
 public:
  Batch(Group& group, std::span<const OpSpec> ops) : group_(group), control_(group.control()) {
    for (const OpSpec& op : ops) {
      Message& message = messages_.emplace_back();
      message.op = op;
      message.bytes = op.count * shardrun::sdk::dtype_size(op.dtype);
      if (op.opcode == SR_OP_SEND && message.bytes > 0) {
        message.exposed = Exposed(group.shared(), *op.send, message.bytes);
      }
    }
  }
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;
  ~Batch() override { group_.worker().drop(*this); }

  void start(void*, std::int64_t deadline) override {
    group_.check();
    for (Message& message : messages_) {
      message.post = nullptr;
      message.done = false;
      if (message.exposed.is_copy()) {
        std::memcpy(message.exposed.data(), message.op.send->data, message.bytes);
      }
    }
    group_.worker().start(*this, deadline);
  }
  bool test() override { return group_.worker().test(*this); }
  bool wait(std::int64_t deadline) override { return group_.worker().wait(*this, deadline); }

 private:
  struct Message {
    OpSpec op;
    std::uint64_t bytes = 0;
    Exposed exposed;
    std::shared_ptr<std::byte> source;  ///< of a receive: the sender's memory, kept mapped for the next time
    Post* post = nullptr;  ///< of a send that waits for its receiver
    bool done = false;
  };

  void run(std::int64_t deadline) override {
    const auto needs = [this](std::uint32_t member) {
      return std::any_of(messages_.begin(), messages_.end(),
                         [&](const Message& message) { return !message.done && message.op.peer == member; });
    };
    if (control_.wait(deadline, group_.cancelled(), needs, [this] { return progress(); })) {
      return;
    }
    std::string waiting;
    for (const Message& message : messages_) {
      if (!message.done) {
        waiting += (waiting.empty() ? "" : ", ") + shardrun::sdk::describe(message.op) + " and " +
                   control_.name_of(message.op.peer);
      }
    }
    throw TransportError(SR_TIMEOUT, waiting + ": past the deadline, and the other side has not come");
  }
  [[nodiscard]] std::string what() const override { return shardrun::sdk::describe(messages_.front().op); }

  /// One look at every message; whether all are done.
  bool progress() {
    bool all = true;
    bool changed = false;
    for (Message& message : messages_) {
      if (!message.done && is_next(message)) {
        changed = (message.op.opcode == SR_OP_SEND ? send(message) : receive(message)) || changed;
      }
      all = all && message.done;
    }
    if (changed) {
      control_.ring();
    }
    return all;
  }

  /// Whether no message before it, the same way between the same two members with the same id, is still to be posted or
  /// found: they find each other in their order.
  [[nodiscard]] bool is_next(const Message& message) const {
    for (const Message& other : messages_) {
      if (&other == &message) {
        return true;
      }
      const bool alike =
          other.op.opcode == message.op.opcode && other.op.peer == message.op.peer && other.op.id == message.op.id;
      if (alike && !other.done && other.post == nullptr) {
        return false;
      }
    }
    return true;
  }

  /// Both return whether something happened that others may wait for.
  bool send(Message& message) {
    if (message.post == nullptr) {
      message.post = claim_post(message.op.peer);
      if (message.post == nullptr) {
        return false;
      }
      message.post->id = message.op.id;
      message.post->memory = message.exposed.ref();
      message.post->memory.bytes = message.bytes;
      message.post->ticket.store(group_.next_ticket());
      message.post->state.store(post_ready);
      group_.shared().wire_bytes.fetch_add(message.bytes, std::memory_order_relaxed);
      return true;
    }
    if (message.post->state.load() != post_done) {
      return false;
    }
    message.post->state.store(post_free);
    message.done = true;
    return false;
  }

  [[nodiscard]] Post* claim_post(std::uint32_t to) {
    for (std::uint32_t i = 0; i < posts_per_pair; ++i) {
      Post& post = control_.post(control_.rank(), to, i);
      std::uint32_t expected = post_free;
      if (post.state.compare_exchange_strong(expected, post_filling)) {
        return &post;
      }
    }
    return nullptr;
  }

  bool receive(Message& message) {
    Post* first = nullptr;
    for (std::uint32_t i = 0; i < posts_per_pair; ++i) {
      Post& post = control_.post(message.op.peer, control_.rank(), i);
      if (post.state.load() == post_ready && post.id == message.op.id &&
          (first == nullptr || post.ticket.load() < first->ticket.load())) {
        first = &post;
      }
    }
    if (first == nullptr) {
      return false;
    }
    first->state.store(post_taken);
    if (first->memory.bytes != message.bytes) {
      throw TransportError(SR_INVALID, shardrun::sdk::describe(message.op) + ": " + control_.name_of(message.op.peer) +
                                           " sends " + std::to_string(first->memory.bytes) + " bytes, expected " +
                                           std::to_string(message.bytes));
    }
    if (message.bytes > 0) {
      message.source = group_.shared().peers.resolve(first->memory);
      std::memcpy(message.op.recv->data, message.source.get(), message.bytes);
    }
    first->state.store(post_done);
    message.done = true;
    return true;
  }

  Group& group_;
  Control& control_;
  std::list<Message> messages_;
};

}  // namespace

std::unique_ptr<shardrun::sdk::Op> make_batch(Group& group, std::span<const OpSpec> ops) {
  return std::make_unique<Batch>(group, ops);
}

}  // namespace shm
