#pragma once

/// What the ops of a group share: its link, the threads that use it, and the agreement of the members on an op. For
/// transports of two functions (two_function_transport.hpp).

#include <shardrun/sdk/transport/agreement.hpp>
#include <shardrun/sdk/transport/group.hpp>
#include <shardrun/sdk/transport/worker.hpp>

#include <sys/uio.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace shardrun::sdk {

/// Tells whether waits should give up.
class Cancel {
 public:
  /// `sender` may be null.
  Cancel(const Worker& worker, const Worker* sender, const TransportHost& host)
      : worker_(worker), sender_(sender), host_(host) {}

  [[nodiscard]] bool requested() const noexcept {
    return worker_.failed() || (sender_ != nullptr && sender_->failed()) || host_.aborted();
  }
  /// Throws TransportError{SR_ABORTED} if waits should give up.
  void check() const {
    if (requested()) {
      throw TransportError(SR_ABORTED, "the group was aborted");
    }
  }

 private:
  const Worker& worker_;
  const Worker* sender_;
  TransportHost host_;
};

template <class Link>
concept TwoFunctionLink = std::constructible_from<Link, const Config&, const GroupSpec&, const Cancel&> &&
    requires(Link& link, const void* from, void* to) {
  link.send(std::uint32_t{}, from, std::size_t{}, Deadline());
  link.receive(std::uint32_t{}, to, std::size_t{}, Deadline());
};

template <class Link>
concept UnblockedLink = std::constructible_from<Link, const Config&, const GroupSpec&, const Cancel&> &&
    requires(Link& link, std::span<const iovec> parts, std::span<const std::uint32_t> peers) {
  { link.try_send(std::uint32_t{}, parts) } -> std::same_as<std::size_t>;
  { link.try_receive(std::uint32_t{}, parts) } -> std::same_as<std::size_t>;
  link.wait(peers, peers, Deadline());
};

namespace detail {

/// What a transport has sent and received, over all its groups.
struct Traffic {
  struct From {
    std::atomic<std::uint64_t> bytes = 0;
    std::atomic<std::uint64_t> nanoseconds = 0;
  };

  std::atomic<std::uint64_t> wire_bytes = 0;  ///< sent
  std::vector<From> from;                     ///< by rank of the world: see sr_arrivals
};

/// A message of fewer bytes than this is too short to tell how fast a link is.
constexpr std::uint64_t least_measured_bytes = std::uint64_t{64} << 10U;

/// Precedes every message, so that an unexpected message is detected.
struct MessageHeader {
  std::uint64_t id = 0;
  std::uint64_t bytes = 0;

  bool operator==(const MessageHeader&) const = default;
};

struct LinkMessage {
  LinkMessage(std::uint32_t to_or_from, std::uint64_t id, void* at, std::uint64_t bytes)
      : peer(to_or_from), header{id, bytes}, data(static_cast<std::byte*>(at)) {}

  /// Bytes of data that were sent or received, without the header.
  [[nodiscard]] std::uint64_t bytes_passed() const noexcept {
    return passed < sizeof(header) ? 0 : passed - sizeof(header);
  }
  [[nodiscard]] bool is_complete() const noexcept { return passed == sizeof(header) + header.bytes; }

  std::uint32_t peer;
  MessageHeader header;
  std::byte* data;

  // State of the latest run:
  std::uint64_t passed = 0;    ///< bytes of header and data
  MessageHeader arrived = {};  ///< the header that arrived
  std::int64_t first_at = 0;   ///< when its first bytes arrived
};

/// The bytes of a long message that are passed on at a time. A multiple of every element's size.
constexpr std::uint64_t piece_bytes = std::uint64_t{256} << 10U;

/// Calls `act`, and puts `prefix` before the text of a TransportError that it throws.
template <class Act>
void naming(const std::string& prefix, Act act) {
  try {
    act();
  } catch (const TransportError& error) {
    throw error.within(prefix);
  }
}

/// A group's link and its threads: a worker and, for a link that blocks, a second one that sends. A task that uses the
/// link holds `in_use`.
template <class Link>
class LinkGroup {
  static constexpr bool blocks = !UnblockedLink<Link>;

 public:
  LinkGroup(const Config& config, const GroupSpec& spec, Traffic& traffic)
      : spec_(spec),
        traffic_(traffic),
        sending_(*this),
        sender_(blocks ? std::make_unique<Worker>() : nullptr),
        cancel_(worker_, sender_.get(), config.host),
        link_(config, spec, cancel_) {
    waiting_to_.reserve(spec.size());
    waiting_from_.reserve(spec.size());
  }

  [[nodiscard]] std::uint32_t rank() const noexcept { return spec_.rank; }
  [[nodiscard]] std::uint32_t size() const noexcept { return spec_.size(); }
  [[nodiscard]] Worker& worker() noexcept { return worker_; }
  [[nodiscard]] std::mutex& in_use() noexcept { return in_use_; }

  /// Sends and receives messages at the same time; those to or from one member keep their order. Calls `meanwhile` once
  /// sending has begun, and `arrived(message)` when more of a message has come. Throws what the link throws, with the
  /// peer's name before it.
  template <class Meanwhile, class Arrived>
  void exchange(std::vector<LinkMessage>& sends, std::vector<LinkMessage>& receives, Deadline deadline,
                Meanwhile meanwhile, Arrived arrived) {
    for (std::vector<LinkMessage>* messages : {&sends, &receives}) {
      for (LinkMessage& message : *messages) {
        message.passed = 0;
      }
    }
    if constexpr (!blocks) {
      pass_on(sends, receives, deadline, meanwhile, arrived);
    } else if (sends.empty() || receives.empty()) {
      send(sends, deadline);
      meanwhile();
      receive(receives, deadline, arrived);
    } else {
      exchange_on_two_threads(sends, receives, deadline, meanwhile, arrived);
    }
  }

 private:
  class Sending final : public Worker::Task {
   public:
    explicit Sending(LinkGroup& group) : group_(group) {}
    std::vector<LinkMessage>* messages = nullptr;

   private:
    void run(Deadline deadline) override {
      if constexpr (blocks) {
        group_.send(*messages, deadline);
      }
    }
    [[nodiscard]] std::string what() const override { return "sending"; }

    LinkGroup& group_;
  };

  /// At the end of an exchange, also by an exception, waits until the sender does not access its buffers any more.
  struct SenderRelease {
    Worker& sender;
    Sending& sending;
    ~SenderRelease() { sender.drop(sending); }
  };

  template <class Meanwhile, class Arrived>
  void exchange_on_two_threads(std::vector<LinkMessage>& sends, std::vector<LinkMessage>& receives, Deadline deadline,
                               Meanwhile meanwhile, Arrived arrived) {
    sending_.messages = &sends;
    sender_->start(sending_, deadline);
    const SenderRelease sender_release{*sender_, sending_};
    try {
      meanwhile();
      receive(receives, deadline, arrived);
    } catch (const TransportError&) {
      if (const std::optional<TransportError> first = sender_->failure()) {
        throw TransportError(*first);
      }
      throw;
    }
    (void)sender_->wait(sending_, Deadline::never());
  }

  /// Calls `act`, which exchanges data with `peer` only. A TransportError then names that member.
  template <class Act>
  void with_peer(const char* what, std::uint32_t peer, Act act) {
    try {
      act();
    } catch (const TransportError& error) {
      const bool is_vain = error.status() == SR_TIMEOUT || error.status() == SR_PEER_LOST;
      throw TransportError(error.status(), what + spec_.name_of(peer) + ": " + error.what(),
                           is_vain ? std::optional(spec_.members[peer]) : std::nullopt);
    }
  }
  static constexpr const char* sending_to = "sending to ";
  static constexpr const char* receiving_from = "receiving from ";

  static void require_expected(const LinkMessage& message) {
    if (message.arrived != message.header) {
      throw TransportError(
          SR_INVALID, "expected " + std::to_string(message.header.bytes) + " bytes of op " +
                          std::to_string(message.header.id) + ", and " + std::to_string(message.arrived.bytes) +
                          " of op " + std::to_string(message.arrived.id) + " came: the two members do not do the same");
    }
  }

  /// The end of a message's next piece, in bytes of its data.
  [[nodiscard]] static std::uint64_t end_of_piece(const LinkMessage& message) noexcept {
    return std::min(message.header.bytes, (message.bytes_passed() / piece_bytes + 1) * piece_bytes);
  }

  // Exchanges over a link that blocks.

  void send(std::vector<LinkMessage>& messages, Deadline deadline) {
    for (LinkMessage& message : messages) {
      with_peer(sending_to, message.peer, [&] {
        link_.send(message.peer, &message.header, sizeof(message.header), deadline);
        link_.send(message.peer, message.data, message.header.bytes, deadline);
      });
      count(message);
    }
  }

  template <class Arrived>
  void receive(std::vector<LinkMessage>& messages, Deadline deadline, Arrived arrived) {
    for (LinkMessage& message : messages) {
      with_peer(receiving_from, message.peer, [&] {
        link_.receive(message.peer, &message.arrived, sizeof(message.arrived), deadline);
        message.passed = sizeof(message.arrived);
        note_first(message);
        require_expected(message);
        while (!message.is_complete()) {
          const std::uint64_t at = message.bytes_passed();
          const std::uint64_t bytes = end_of_piece(message) - at;
          link_.receive(message.peer, message.data + at, bytes, deadline);
          message.passed += bytes;
          arrived(message);
        }
        count_arrival(message);
      });
    }
  }

  // Exchanges over a link that does not block.

  template <class Meanwhile, class Arrived>
  void pass_on(std::vector<LinkMessage>& sends, std::vector<LinkMessage>& receives, Deadline deadline,
               Meanwhile meanwhile, Arrived arrived) {
    bool is_first = true;
    for (;;) {
      bool moved = advance(sends, waiting_to_, sending_to, [&](LinkMessage& message) {
        const std::size_t passed = link_.try_send(message.peer, next_piece(message, message.header));
        message.passed += passed;
        if (message.is_complete()) {
          count(message);
        }
        return passed != 0;
      });
      if (std::exchange(is_first, false)) {
        meanwhile();
      }
      const bool more_came = advance(receives, waiting_from_, receiving_from, [&](LinkMessage& message) {
        const bool is_first = message.passed == 0;
        const std::size_t passed = link_.try_receive(message.peer, next_piece(message, message.arrived));
        message.passed += passed;
        if (is_first && passed != 0) {
          note_first(message);
        } else if (message.is_complete()) {
          count_arrival(message);
        }
        if (message.passed >= sizeof(message.arrived)) {
          require_expected(message);
          arrived(message);
        }
        return passed != 0;
      });
      if (waiting_to_.empty() && waiting_from_.empty()) {
        return;
      }
      cancel_.check();
      require_time(deadline);
      if (!moved && !more_came) {
        link_.wait(waiting_to_, waiting_from_, deadline);
      }
    }
  }

  /// Calls `pass` for the first incomplete message of each member, and for the next one once a message is complete.
  /// `waiting` gets the members with more to pass on. Returns whether any byte was passed on.
  template <class Pass>
  bool advance(std::vector<LinkMessage>& messages, std::vector<std::uint32_t>& waiting, const char* what, Pass pass) {
    bool moved = false;
    waiting.clear();
    for (LinkMessage& message : messages) {
      const bool has_predecessor = !waiting.empty() && waiting.back() == message.peer;
      if (message.is_complete() || has_predecessor) {
        continue;
      }
      with_peer(what, message.peer, [&] { moved = pass(message) || moved; });
      if (!message.is_complete()) {
        waiting.push_back(message.peer);
      }
    }
    return moved;
  }

  /// The rest of a message's current piece. `header`: the header to send, or memory for the header to receive.
  [[nodiscard]] std::span<const iovec> next_piece(LinkMessage& message, MessageHeader& header) noexcept {
    const std::uint64_t header_passed = std::min<std::uint64_t>(message.passed, sizeof(header));
    const std::uint64_t at = message.bytes_passed();
    parts_[0] = {reinterpret_cast<std::byte*>(&header) + header_passed, sizeof(header) - header_passed};
    parts_[1] = {message.data + at, end_of_piece(message) - at};
    const std::span<const iovec> parts = parts_;
    return parts_[0].iov_len == 0 ? parts.subspan(1) : message.header.bytes == 0 ? parts.first(1) : parts;
  }

  /// Throws SR_TIMEOUT if the deadline has passed. The error names one of the members that this one waits for.
  void require_time(Deadline deadline) {
    if (!deadline.passed()) {
      return;
    }
    const bool receives = !waiting_from_.empty();
    with_peer(receives ? receiving_from : sending_to, receives ? waiting_from_.front() : waiting_to_.front(),
              [] { throw TransportError(SR_TIMEOUT, "the deadline passed"); });
  }

  void count(const LinkMessage& message) {
    traffic_.wire_bytes.fetch_add(sizeof(message.header) + message.header.bytes, std::memory_order_relaxed);
  }

  static void note_first(LinkMessage& message) noexcept {
    if (message.header.bytes >= least_measured_bytes) {
      message.first_at = monotonic_now();
    }
  }
  /// Counts a complete message, with the time since its first bytes arrived. So a late sender does not matter.
  void count_arrival(const LinkMessage& message) noexcept {
    if (message.header.bytes >= least_measured_bytes && spec_.members[message.peer] < traffic_.from.size()) {
      Traffic::From& from = traffic_.from[spec_.members[message.peer]];
      from.bytes.fetch_add(message.header.bytes, std::memory_order_relaxed);
      from.nanoseconds.fetch_add(static_cast<std::uint64_t>(monotonic_now() - message.first_at),
                                 std::memory_order_relaxed);
    }
  }

  GroupSpec spec_;
  Traffic& traffic_;
  Sending sending_;
  Worker worker_;
  std::unique_ptr<Worker> sender_;
  Cancel cancel_;
  Link link_;
  std::mutex in_use_;
  std::vector<std::uint32_t> waiting_to_;
  std::vector<std::uint32_t> waiting_from_;
  std::array<iovec, 2> parts_ = {};
};

/// Runs the agreement of the members on an op.
template <class Link>
class AgreeTask final : public Worker::Task {
 public:
  AgreeTask(LinkGroup<Link>& group, const OpSpec& op)
      : group_(group), op_(op), agreement_(op, group.rank(), group.size()) {}
  ~AgreeTask() override { group_.worker().drop(*this); }

  /// Waits for the agreement. Throws TransportError.
  void finish(Deadline deadline) {
    group_.worker().start(*this, deadline);
    (void)group_.worker().wait(*this, Deadline::never());
    if (const auto& why = agreement_.difference()) {
      throw TransportError(SR_INVALID, *why);
    }
  }

 private:
  static constexpr std::uint64_t agreement_id = UINT64_MAX;

  void run(Deadline deadline) override {
    const std::lock_guard lock(group_.in_use());
    naming(what(), [&] {
      for (std::uint32_t round = 0; round < Agreement::rounds; ++round) {
        exchange(round, deadline);
        agreement_.conclude(round);
      }
    });
  }
  void exchange(std::uint32_t round, Deadline deadline) {
    const std::uint32_t n = group_.size();
    std::vector<LinkMessage> sends;
    std::vector<LinkMessage> receives;
    for (std::uint32_t distance = 1; distance < n; ++distance) {
      const std::uint32_t to = (group_.rank() + distance) % n;
      const std::uint32_t from = (group_.rank() + n - distance) % n;
      sends.emplace_back(to, agreement_id, agreement_.outgoing(round, to), agreement_.bytes(round));
      receives.emplace_back(from, agreement_id, agreement_.incoming(round, from), agreement_.bytes(round));
    }
    group_.exchange(
        sends, receives, deadline, [] {}, [](const LinkMessage&) {});
  }
  [[nodiscard]] std::string what() const override { return "preparing " + describe(op_); }

  LinkGroup<Link>& group_;
  const OpSpec& op_;
  Agreement agreement_;
};

}  // namespace detail

}  // namespace shardrun::sdk
