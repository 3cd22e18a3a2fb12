#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "group.h"

// Sends and receives. A sender posts letters; the receiver finds one by its id, in the order of sending. Short texts
// are enclosed, and their sender is done. Else the receiver reads the text where it lies, or piece by piece where it
// cannot map that, and says so, which gives the sender its buffer back.

namespace shm {

class Batch final : public shardrun::sdk::Op, private Worker::Task {
 public:
  Batch(Group& group, std::span<const OpSpec> ops)
      : group_(group), control_(group.control()), sends_(control_.size()), receives_(control_.size()) {
    for (const OpSpec& op : ops) {
      Message& message = messages_.emplace_back();
      message.op = op;
      message.bytes = op.count * shardrun::sdk::dtype_size(op.dtype);
      is_blocking_ = is_blocking_ && (op.flags & SR_OP_FLAG_BLOCKING) != 0;
      if (message.sends()) {
        ++sends_[op.peer];
        sent_bytes_ += message.bytes;
        message.text = message.bytes == 0 ? nullptr : static_cast<std::byte*>(op.send->data);
        message.memory = message.bytes == 0 ? std::nullopt : mappable(group.shared(), *op.send, message.bytes);
      } else {
        ++receives_[op.peer];
        message.text = message.bytes == 0 ? nullptr : static_cast<std::byte*>(op.recv->data);
      }
    }
    require_room();
  }
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;
  ~Batch() override {
    if (group_.turns().on_caller == this) {
      group_.turns().on_caller = nullptr;
      group_.fail({SR_ABORTED, what() + " was freed before it was complete"});
    }
    group_.worker().drop(*this);
    if (has_sends_to_read()) {
      group_.fail({SR_ABORTED, what() + " was freed before it was complete"});
      group_.await_untouched();
    }
  }

  void start(void*, std::int64_t deadline) override {
    if (is_on_worker_) {
      group_.worker().reset(*this);  // a run before says nothing of this one, whoever carries it out
    }
    group_.check();
    for (Message& message : messages_) {
      message.stage = Message::Stage::waiting;
      message.moved = 0;
    }
    is_posted_ = false;
    is_complete_ = false;
    deadline_ = deadline;
    Group::Turns& turns = group_.turns();
    if (Batch* const before = std::exchange(turns.on_caller, nullptr)) {
      before->go_on_worker();
    }
    if (is_blocking_ && turns.on_worker.load() == 0) {
      is_on_worker_ = false;
      turns.on_caller = this;
      is_posted_ = post_sends();
    } else {
      go_on_worker();
    }
  }
  bool test() override { return is_on_worker_ ? group_.worker().test(*this) : advance_on_caller(0); }
  bool wait(std::int64_t deadline) override {
    return is_on_worker_ ? group_.wait(*this, deadline) : advance_on_caller(deadline);
  }
  std::optional<shardrun::sdk::OpTimes> times() const override {
    return is_on_worker_ ? std::optional(group_.times(*this)) : std::nullopt;
  }

 private:
  struct Message {
    enum class Stage { waiting, in_pieces, done };

    [[nodiscard]] bool sends() const noexcept { return op.opcode == SR_OP_SEND; }
    [[nodiscard]] bool is_done() const noexcept { return stage == Stage::done; }

    OpSpec op;
    std::uint64_t bytes = 0;
    std::byte* text = nullptr;
    std::optional<MemoryRef> memory;    ///< of a send, where others can map it
    std::shared_ptr<std::byte> source;  ///< of a receive: the sender's memory, kept mapped for the next time
    Letter letter;                      ///< once it was posted or has come
    std::uint64_t moved = 0;            ///< of what goes in pieces
    Stage stage = Stage::done;
  };

  void go_on_worker() {
    is_on_worker_ = true;
    group_.turns().on_worker.fetch_add(1);
    group_.start(*this, deadline_);
  }

  void run(std::int64_t) override {
    const bool is_done = advance(deadline_);
    group_.turns().on_worker.fetch_sub(1);
    if (!is_done) {
      throw past_deadline();
    }
  }
  [[nodiscard]] std::string what() const override { return shardrun::sdk::describe(messages_.front().op); }

  bool advance_on_caller(std::int64_t until) {
    if (is_complete_) {
      return true;
    }
    Batch*& on_caller = group_.turns().on_caller;
    try {
      is_complete_ = group_.on_caller(
          until, deadline_, [&](std::int64_t latest) { return advance(latest); }, [this] { return past_deadline(); });
    } catch (const TransportError&) {
      on_caller = nullptr;
      throw;
    }
    if (is_complete_) {
      on_caller = nullptr;
    }
    return is_complete_;
  }

  bool advance(std::int64_t until) {
    const auto needs = [this](std::uint32_t member) {
      return std::any_of(messages_.begin(), messages_.end(),
                         [&](const Message& message) { return !message.is_done() && message.op.peer == member; });
    };
    return control_.wait(until, next_look_, group_.cancelled(), needs, [this] { return progress(); });
  }

  /// Whether another member may be reading what this one sends.
  [[nodiscard]] bool has_sends_to_read() const noexcept {
    return is_posted_ && std::any_of(messages_.begin(), messages_.end(), [](const Message& message) {
             return message.sends() && !message.is_done() && message.letter.carriage == Carriage::in_place &&
                    !Outbox::is_done(message.letter);
           });
  }

  [[nodiscard]] TransportError past_deadline() const {
    std::vector<const OpSpec*> late;
    std::vector<std::uint32_t> missing;
    for (const Message& message : messages_) {
      if (message.is_done()) {
        continue;
      }
      late.push_back(&message.op);
      if (std::find(missing.begin(), missing.end(), message.op.peer) == missing.end()) {
        missing.push_back(message.op.peer);
      }
    }
    const std::string others = late.size() == 1 ? "" : " and " + std::to_string(late.size() - 1) + " more";
    return control_.past_deadline(shardrun::sdk::describe(*late.front()) + others + " is past its deadline", missing);
  }

  /// All of them, or none where a receiver is so far behind that there is no room.
  bool post_sends() {
    for (std::uint32_t m = 0; m < control_.size(); ++m) {
      if (sends_[m] > 0 && !group_.outbox(m).has_room(sends_[m])) {
        return false;
      }
    }
    if (sent_bytes_ > 0) {
      group_.shared().wire_bytes.fetch_add(sent_bytes_, std::memory_order_relaxed);
    }
    for (Message& message : messages_) {
      if (message.sends()) {
        message.letter =
            group_.outbox(message.op.peer).post(message.op.id, message.text, message.bytes, message.memory);
        message.stage = Outbox::is_done(message.letter) ? Message::Stage::done : message.stage;
      }
    }
    control_.ring();
    return true;
  }

  /// One look at every message; whether all are done. The letters that have come are noted once, so that of two
  /// receives with one id the second cannot find what came just after the first has looked.
  bool progress() {
    is_posted_ = is_posted_ || post_sends();
    for (std::uint32_t m = 0; m < control_.size(); ++m) {
      if (receives_[m] > 0) {
        group_.inbox(m).look();
      }
    }
    bool all = is_posted_;
    bool has_news = false;
    for (Message& message : messages_) {
      if (!message.is_done()) {
        has_news = (message.sends() ? go_on_sending(message) : go_on_receiving(message)) || has_news;
      }
      all = all && message.is_done();
    }
    for (std::uint32_t m = 0; m < control_.size(); ++m) {
      if (receives_[m] > 0) {
        has_news = group_.inbox(m).settle() || has_news;
      }
    }
    if (has_news) {
      control_.ring();
    }
    return all;
  }

  /// Whether there is something new for the receiver.
  bool go_on_sending(Message& message) {
    if (!is_posted_) {
      return false;
    }
    if (Outbox::is_done(message.letter)) {
      message.stage = Message::Stage::done;
      return false;
    }
    return message.letter.carriage == Carriage::in_pieces &&
           group_.outbox(message.op.peer).feed(message.letter, message.text, message.moved);
  }

  /// Whether there is something new for the sender.
  bool go_on_receiving(Message& message) {
    Inbox& inbox = group_.inbox(message.op.peer);
    if (message.stage == Message::Stage::waiting) {
      std::optional<Letter> letter = inbox.take(message.op.id);
      if (!letter) {
        return false;
      }
      message.letter = std::move(*letter);
      require_size(message);
      if (message.letter.carriage == Carriage::in_pieces) {
        message.stage = Message::Stage::in_pieces;
      } else {
        read(message);
        inbox.take_back(message.letter);
      }
    }
    if (message.stage == Message::Stage::in_pieces) {
      return draw(message, inbox);
    }
    message.stage = Message::Stage::done;
    return true;
  }

  void read(Message& message) {
    const Letter& letter = message.letter;
    if (letter.carriage == Carriage::in_place) {
      message.source = group_.memory_of(message.op.peer, letter.memory);
      const auto is_sender = [&](std::uint32_t m) { return m == message.op.peer; };
      control_.touch(is_sender, [&] { std::memcpy(message.text, message.source.get(), message.bytes); });
      Inbox::finish(letter);
    } else if (message.bytes > 0) {
      std::memcpy(message.text, letter.text, message.bytes);
    }
  }

  bool draw(Message& message, Inbox& inbox) {
    const bool has_news = inbox.draw(message.letter, message.text, message.moved);
    if (message.moved == message.bytes) {
      Inbox::finish(message.letter);
      message.stage = Message::Stage::done;
      return true;
    }
    return has_news;
  }

  void require_size(const Message& message) const {
    if (message.letter.bytes != message.bytes) {
      throw TransportError(SR_INVALID, shardrun::sdk::describe(message.op) + ": " + control_.name_of(message.op.peer) +
                                           " sends " + std::to_string(message.letter.bytes) + " bytes, expected " +
                                           std::to_string(message.bytes));
    }
  }

  void require_room() const {
    for (std::uint32_t m = 0; m < control_.size(); ++m) {
      if (sends_[m] > posts_per_pair) {
        throw TransportError(SR_INVALID, std::to_string(sends_[m]) + " sends to " + control_.name_of(m) +
                                             " are prepared as one, at most " + std::to_string(posts_per_pair) +
                                             " can be: split the batch");
      }
    }
  }

  Group& group_;
  Control& control_;
  std::vector<Message> messages_;
  std::vector<std::uint32_t> sends_;     ///< to each member
  std::vector<std::uint32_t> receives_;  ///< from each member
  std::uint64_t sent_bytes_ = 0;
  bool is_blocking_ = true;
  bool is_on_worker_ = false;
  bool is_posted_ = false;
  bool is_complete_ = false;  ///< of one on the caller's thread
  std::int64_t deadline_ = 0;
  Control::NextLook next_look_ = 0;
};

std::unique_ptr<shardrun::sdk::Op> make_batch(Group& group, std::span<const OpSpec> ops) {
  return std::make_unique<Batch>(group, ops);
}

}  // namespace shm
