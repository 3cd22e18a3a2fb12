#include <algorithm>
#include <cstring>
#include <vector>

#include "group.h"

// Sends and receives. A sender posts where its data is; the receiver finds the letter by its id, in the order of
// sending, reads the data from the sender's memory and says so, which gives the sender its buffer back.

namespace shm {
namespace {

class Batch final : public shardrun::sdk::Op, private Worker::Task {
 public:
  Batch(Group& group, std::span<const OpSpec> ops) : group_(group), control_(group.control()) {
    for (const OpSpec& op : ops) {
      Message& message = messages_.emplace_back();
      message.op = op;
      message.bytes = op.count * shardrun::sdk::dtype_size(op.dtype);
    }
    require_room();
    std::vector<ToExpose> sent;
    for (const Message& message : messages_) {
      const bool sends = message.op.opcode == SR_OP_SEND && message.bytes > 0;
      sent.push_back(sends ? ToExpose{&*message.op.send, message.bytes} : ToExpose{});
    }
    const std::vector<Exposed> exposed = expose(group.shared(), sent);
    for (std::size_t i = 0; i < messages_.size(); ++i) {
      messages_[i].exposed = exposed[i];
    }
  }
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;
  ~Batch() override { group_.worker().drop(*this); }

  void start(void*, std::int64_t deadline) override {
    group_.check();
    for (Message& message : messages_) {
      message.done = false;
      if (message.exposed.is_copy()) {
        std::memcpy(message.exposed.data(), message.op.send->data, message.bytes);
      }
    }
    deadline_ = deadline;
    group_.start(*this, deadline);
  }
  bool test() override { return group_.worker().test(*this); }
  bool wait(std::int64_t deadline) override { return group_.wait(*this, deadline_, deadline); }

 private:
  struct Message {
    OpSpec op;
    std::uint64_t bytes = 0;
    Exposed exposed;
    std::shared_ptr<std::byte> source;  ///< of a receive: the sender's memory, kept mapped for the next time
    Letter letter;                      ///< of a send
    bool done = false;
  };

  void run(std::int64_t) override {
    post_sends();
    const auto needs = [this](std::uint32_t member) {
      return std::any_of(messages_.begin(), messages_.end(),
                         [&](const Message& message) { return !message.done && message.op.peer == member; });
    };
    if (control_.wait(deadline_, group_.cancelled(), needs, [this] { return progress(); })) {
      return;
    }
    throw TransportError(SR_TIMEOUT, past_deadline());
  }
  [[nodiscard]] std::string what() const override { return shardrun::sdk::describe(messages_.front().op); }

  [[nodiscard]] std::string past_deadline() const {
    std::vector<const OpSpec*> late;
    std::vector<bool> is_named(control_.size());
    std::string missing;
    for (const Message& message : messages_) {
      if (message.done) {
        continue;
      }
      late.push_back(&message.op);
      if (!is_named[message.op.peer]) {
        is_named[message.op.peer] = true;
        missing += (missing.empty() ? "" : ", ") + control_.name_of(message.op.peer);
      }
    }
    const std::string others = late.size() == 1 ? "" : " and " + std::to_string(late.size() - 1) + " more";
    return shardrun::sdk::describe(*late.front()) + others + " is past its deadline, waiting for " + missing;
  }

  void post_sends() {
    for (std::uint32_t m = 0; m < control_.size(); ++m) {
      group_.outbox(m).begin();
    }
    for (Message& message : messages_) {
      if (message.op.opcode == SR_OP_SEND) {
        message.letter = group_.outbox(message.op.peer).post(message.op.id, message.exposed.ref());
        group_.shared().wire_bytes.fetch_add(message.bytes, std::memory_order_relaxed);
      }
    }
    control_.ring();
  }

  /// One look at every message; whether all are done. The letters that have come are noted once, so that of two
  /// receives with one id the second cannot find what came just after the first has looked.
  bool progress() {
    for (std::uint32_t m = 0; m < control_.size(); ++m) {
      group_.inbox(m).look();
    }
    bool all = true;
    bool received = false;
    for (Message& message : messages_) {
      if (!message.done) {
        const bool sends = message.op.opcode == SR_OP_SEND;
        message.done = sends ? Outbox::is_done(message.letter) : receive(message);
        received = received || (!sends && message.done);
      }
      all = all && message.done;
    }
    if (received) {
      control_.ring();
    }
    return all;
  }

  bool receive(Message& message) {
    const std::optional<Letter> letter = group_.inbox(message.op.peer).take(message.op.id);
    if (!letter) {
      return false;
    }
    if (letter->memory.bytes != message.bytes) {
      throw TransportError(SR_INVALID, shardrun::sdk::describe(message.op) + ": " + control_.name_of(message.op.peer) +
                                           " sends " + std::to_string(letter->memory.bytes) + " bytes, expected " +
                                           std::to_string(message.bytes));
    }
    if (message.bytes > 0) {
      message.source = group_.memory_of(message.op.peer, letter->memory);
      std::memcpy(message.op.recv->data, message.source.get(), message.bytes);
    }
    Inbox::finish(*letter);
    return true;
  }

  void require_room() const {
    std::vector<std::uint32_t> sends(control_.size());
    for (const Message& message : messages_) {
      sends[message.op.peer] += message.op.opcode == SR_OP_SEND ? 1 : 0;
    }
    for (std::uint32_t m = 0; m < control_.size(); ++m) {
      if (sends[m] > posts_per_pair) {
        throw TransportError(SR_INVALID, std::to_string(sends[m]) + " sends to " + control_.name_of(m) +
                                             " are prepared as one, at most " + std::to_string(posts_per_pair) +
                                             " can be: split the batch");
      }
    }
  }

  Group& group_;
  Control& control_;
  std::vector<Message> messages_;
  std::int64_t deadline_ = 0;
};

}  // namespace

std::unique_ptr<shardrun::sdk::Op> make_batch(Group& group, std::span<const OpSpec> ops) {
  return std::make_unique<Batch>(group, ops);
}

}  // namespace shm
