#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "transports/shm/group.h"

// Sends and receives. The sender posts messages; the receiver matches them by id, in the order of sending. An eager
// message is done when it is posted. Any other is done when the receiver has copied its bytes, from the sender's mapped
// memory or piece by piece. The receiver then says so, and the sender may reuse its buffer.

namespace shardrun::shm_transport {

class Batch final : public shardrun::sdk::Op, private Worker::Task {
 public:
  Batch(ShmGroup& group, std::span<const OpSpec> ops)
      : group_(group), control_(group.control()), sends_(control_.size()), receives_(control_.size()) {
    for (const OpSpec& op : ops) {
      PeerTransfer& transfer = transfers_.emplace_back();
      transfer.op = op;
      transfer.bytes = op.count * shardrun::sdk::dtype_size(op.dtype);
      is_blocking_ = is_blocking_ && (op.flags & SR_OP_FLAG_BLOCKING) != 0;
      if (transfer.sends()) {
        ++sends_[op.peer];
        sent_bytes_ += transfer.bytes;
        transfer.data = transfer.bytes == 0 ? nullptr : static_cast<std::byte*>(op.send->data);
        transfer.memory = transfer.bytes == 0 ? std::nullopt : mappable(group.state(), *op.send, transfer.bytes);
      } else {
        ++receives_[op.peer];
        transfer.data = transfer.bytes == 0 ? nullptr : static_cast<std::byte*>(op.recv->data);
      }
    }
    require_room();
  }
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;
  ~Batch() override {
    if (group_.running().on_caller == this) {
      group_.running().on_caller = nullptr;
      group_.fail({SR_ABORTED, what() + " was freed before it was complete"});
    }
    group_.worker().drop(*this);
    if (has_sends_to_read()) {
      group_.fail({SR_ABORTED, what() + " was freed before it was complete"});
      group_.await_untouched();
    }
  }

  void start(void*, sdk::Deadline deadline) override {
    if (is_on_worker_) {
      group_.worker().reset(*this);  // forgets the earlier run, because this one may run on another thread
    }
    group_.check();
    for (PeerTransfer& transfer : transfers_) {
      transfer.state = PeerTransfer::State::waiting;
      transfer.moved = 0;
    }
    are_sends_posted_ = false;
    is_complete_ = false;
    times_on_caller_ = {};
    deadline_ = deadline;
    ShmGroup::Running& running = group_.running();
    if (Batch* const before = std::exchange(running.on_caller, nullptr)) {
      before->continue_on_worker();
    }
    if (is_blocking_ && running.on_worker.load() == 0) {
      is_on_worker_ = false;
      running.on_caller = this;
      are_sends_posted_ = post_sends();
    } else {
      continue_on_worker();
    }
  }
  bool test() override {
    return is_on_worker_ ? group_.worker().test(*this) : advance_on_caller(sdk::Deadline::past());
  }
  bool wait(sdk::Deadline deadline) override {
    return is_on_worker_ ? group_.wait(*this, deadline) : advance_on_caller(deadline);
  }
  std::optional<shardrun::sdk::OpTimes> times() const override {
    return is_on_worker_ ? std::optional(group_.times(*this)) : ShmGroup::known(times_on_caller_);
  }

 private:
  struct PeerTransfer {
    enum class State { waiting, in_pieces, done };

    [[nodiscard]] bool sends() const noexcept { return op.opcode == SR_OP_SEND; }
    [[nodiscard]] bool is_done() const noexcept { return state == State::done; }

    OpSpec op;
    std::uint64_t bytes = 0;
    std::byte* data = nullptr;
    std::optional<MemoryRef> memory;    ///< for a send that others can map
    std::shared_ptr<std::byte> source;  ///< for a receive: the sender's memory, which stays mapped for the next run
    Message message;                    ///< set once posted or matched
    std::uint64_t moved = 0;            ///< bytes moved so far, for a message in pieces
    State state = State::done;
  };

  void continue_on_worker() {
    is_on_worker_ = true;
    group_.running().on_worker.fetch_add(1);
    group_.start(*this, deadline_);
  }

  void run(sdk::Deadline) override {
    const bool is_done = advance(deadline_);
    group_.running().on_worker.fetch_sub(1);
    if (!is_done) {
      throw past_deadline();
    }
  }
  [[nodiscard]] std::string what() const override { return shardrun::sdk::describe(transfers_.front().op); }

  bool advance_on_caller(sdk::Deadline until) {
    if (is_complete_) {
      return true;
    }
    Batch*& on_caller = group_.running().on_caller;
    try {
      is_complete_ = group_.on_caller(
          until, deadline_, times_on_caller_, [&](sdk::Deadline latest) { return advance(latest); },
          [this] { return past_deadline(); });
    } catch (const TransportError&) {
      on_caller = nullptr;
      throw;
    }
    if (is_complete_) {
      on_caller = nullptr;
    }
    return is_complete_;
  }

  bool advance(sdk::Deadline until) {
    const auto needs = [this](std::uint32_t member) {
      return std::any_of(transfers_.begin(), transfers_.end(), [&](const PeerTransfer& transfer) {
        return !transfer.is_done() && transfer.op.peer == member;
      });
    };
    return control_.wait(until, next_check_, group_.cancelled(), needs, [this] { return progress(); });
  }

  /// Whether another member may be reading what this one sends.
  [[nodiscard]] bool has_sends_to_read() const noexcept {
    return are_sends_posted_ && std::any_of(transfers_.begin(), transfers_.end(), [](const PeerTransfer& transfer) {
             return transfer.sends() && !transfer.is_done() && transfer.message.protocol == Protocol::mapped &&
                    !SendRing::is_done(transfer.message);
           });
  }

  [[nodiscard]] TransportError past_deadline() const {
    std::vector<const OpSpec*> late;
    std::vector<std::uint32_t> missing;
    for (const PeerTransfer& transfer : transfers_) {
      if (transfer.is_done()) {
        continue;
      }
      late.push_back(&transfer.op);
      if (std::find(missing.begin(), missing.end(), transfer.op.peer) == missing.end()) {
        missing.push_back(transfer.op.peer);
      }
    }
    const std::string others = late.size() == 1 ? "" : " and " + std::to_string(late.size() - 1) + " more";
    return control_.past_deadline(shardrun::sdk::describe(*late.front()) + others + " is past its deadline", missing);
  }

  /// Posts all sends. If a ring has no room for its sends, posts none and returns false.
  bool post_sends() {
    for (std::uint32_t m = 0; m < control_.size(); ++m) {
      if (sends_[m] > 0 && !group_.send_ring(m).has_room(sends_[m])) {
        return false;
      }
    }
    if (sent_bytes_ > 0) {
      group_.state().wire_bytes.fetch_add(sent_bytes_, std::memory_order_relaxed);
    }
    for (PeerTransfer& transfer : transfers_) {
      if (transfer.sends()) {
        transfer.message =
            group_.send_ring(transfer.op.peer).post(transfer.op.id, transfer.data, transfer.bytes, transfer.memory);
        transfer.state = SendRing::is_done(transfer.message) ? PeerTransfer::State::done : transfer.state;
      }
    }
    control_.notify();
    return true;
  }

  /// Advances every transfer once. Returns whether all are done. Polls each ring only once: otherwise, of two receives
  /// with the same id, the second could match a message that arrived after the first had looked.
  bool progress() {
    are_sends_posted_ = are_sends_posted_ || post_sends();
    for (std::uint32_t m = 0; m < control_.size(); ++m) {
      if (receives_[m] > 0) {
        group_.receive_ring(m).poll();
      }
    }
    bool all = are_sends_posted_;
    bool has_news = false;
    for (PeerTransfer& transfer : transfers_) {
      if (!transfer.is_done()) {
        has_news = (transfer.sends() ? continue_send(transfer) : continue_receive(transfer)) || has_news;
      }
      all = all && transfer.is_done();
    }
    for (std::uint32_t m = 0; m < control_.size(); ++m) {
      if (receives_[m] > 0) {
        has_news = group_.receive_ring(m).release() || has_news;
      }
    }
    if (has_news) {
      control_.notify();
    }
    return all;
  }

  /// Continues a send. Returns whether the receiver has to be notified.
  bool continue_send(PeerTransfer& transfer) {
    if (!are_sends_posted_) {
      return false;
    }
    if (SendRing::is_done(transfer.message)) {
      transfer.state = PeerTransfer::State::done;
      return false;
    }
    return transfer.message.protocol == Protocol::in_pieces &&
           group_.send_ring(transfer.op.peer).write_pieces(transfer.message, transfer.data, transfer.moved);
  }

  /// Continues a receive. Returns whether the sender has to be notified.
  bool continue_receive(PeerTransfer& transfer) {
    ReceiveRing& ring = group_.receive_ring(transfer.op.peer);
    if (transfer.state == PeerTransfer::State::waiting) {
      std::optional<Message> message = ring.match(transfer.op.id);
      if (!message) {
        return false;
      }
      transfer.message = std::move(*message);
      require_size(transfer);
      if (transfer.message.protocol == Protocol::in_pieces) {
        transfer.state = PeerTransfer::State::in_pieces;
      } else {
        read_data(transfer);
        ring.recycle(transfer.message);
      }
    }
    if (transfer.state == PeerTransfer::State::in_pieces) {
      return read_pieces(transfer, ring);
    }
    transfer.state = PeerTransfer::State::done;
    return true;
  }

  void read_data(PeerTransfer& transfer) {
    const Message& message = transfer.message;
    if (message.protocol == Protocol::mapped) {
      transfer.source = group_.memory_of(transfer.op.peer, message.memory);
      const auto is_sender = [&](std::uint32_t m) { return m == transfer.op.peer; };
      control_.touch(is_sender, [&] { std::memcpy(transfer.data, transfer.source.get(), transfer.bytes); });
      ReceiveRing::complete(message);
    } else if (transfer.bytes > 0) {
      std::memcpy(transfer.data, message.data, transfer.bytes);
    }
  }

  bool read_pieces(PeerTransfer& transfer, ReceiveRing& ring) {
    const bool has_news = ring.read_pieces(transfer.message, transfer.data, transfer.moved);
    if (transfer.moved == transfer.bytes) {
      ReceiveRing::complete(transfer.message);
      transfer.state = PeerTransfer::State::done;
      return true;
    }
    return has_news;
  }

  void require_size(const PeerTransfer& transfer) const {
    if (transfer.message.bytes != transfer.bytes) {
      throw TransportError(SR_INVALID, shardrun::sdk::describe(transfer.op) + ": " +
                                           control_.name_of(transfer.op.peer) + " sends " +
                                           std::to_string(transfer.message.bytes) + " bytes, expected " +
                                           std::to_string(transfer.bytes));
    }
  }

  void require_room() const {
    for (std::uint32_t m = 0; m < control_.size(); ++m) {
      if (sends_[m] > slots_per_pair) {
        throw TransportError(SR_INVALID, std::to_string(sends_[m]) + " sends to " + control_.name_of(m) +
                                             " are prepared as one, at most " + std::to_string(slots_per_pair) +
                                             " can be: split the batch");
      }
    }
  }

  ShmGroup& group_;
  Control& control_;
  std::vector<PeerTransfer> transfers_;
  std::vector<std::uint32_t> sends_;     ///< to each member
  std::vector<std::uint32_t> receives_;  ///< from each member
  std::uint64_t sent_bytes_ = 0;
  bool is_blocking_ = true;
  bool is_on_worker_ = false;
  bool are_sends_posted_ = false;
  bool is_complete_ = false;  ///< the latest run is complete; used only on the caller's thread
  sdk::Deadline deadline_;
  shardrun::sdk::OpTimes times_on_caller_;
  Control::NextCheck next_check_ = sdk::Deadline::past();
};

std::unique_ptr<shardrun::sdk::Op> make_batch(ShmGroup& group, std::span<const OpSpec> ops) {
  return std::make_unique<Batch>(group, ops);
}

}  // namespace shardrun::shm_transport
