#pragma once

/// The ops of a group share its link, the threads that use it, and the agreement of the members on an op. For
/// transports of two functions (two_function_transport.hpp).

#include <shardrun/sdk/transport/agreement.hpp>
#include <shardrun/sdk/transport/group.hpp>
#include <shardrun/sdk/transport/worker.hpp>

#include <atomic>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace shardrun::sdk {

/// Whether waits are to give up.
class Cancel {
 public:
  Cancel(const Worker& worker, const Worker& sender, const TransportHost& host)
      : worker_(worker), sender_(sender), host_(host) {}

  [[nodiscard]] bool requested() const noexcept { return worker_.failed() || sender_.failed() || host_.aborted(); }
  /// Throws TransportError{SR_ABORTED}.
  void check() const {
    if (requested()) {
      throw TransportError(SR_ABORTED, "the group was aborted");
    }
  }

 private:
  const Worker& worker_;
  const Worker& sender_;
  TransportHost host_;
};

template <class Link>
concept TwoFunctionLink = std::constructible_from<Link, const Config&, const GroupSpec&, const Cancel&> &&
    requires(Link& link, const void* from, void* to) {
  link.send(std::uint32_t{}, from, std::size_t{}, Deadline());
  link.receive(std::uint32_t{}, to, std::size_t{}, Deadline());
};

namespace detail {

/// Precedes every message, so that an unexpected one is detected.
struct MessageHeader {
  std::uint64_t id = 0;
  std::uint64_t bytes = 0;

  bool operator==(const MessageHeader&) const = default;
};

struct LinkMessage {
  std::uint32_t peer = 0;
  std::uint64_t id = 0;
  void* data = nullptr;
  std::uint64_t bytes = 0;
};

/// Runs `act` and prefixes the text of a TransportError that it throws.
template <class Act>
void naming(const std::string& prefix, Act act) {
  try {
    act();
  } catch (const TransportError& error) {
    throw error.within(prefix);
  }
}

/// A group's link and the two threads that use it. One sends; the other does everything else.
template <TwoFunctionLink Link>
class LinkGroup {
 public:
  LinkGroup(const Config& config, const GroupSpec& spec, std::atomic<std::uint64_t>& wire_bytes)
      : spec_(spec),
        wire_bytes_(wire_bytes),
        sending_(*this),
        cancel_(worker_, sender_, config.host),
        link_(config, spec, cancel_) {}

  [[nodiscard]] std::uint32_t rank() const noexcept { return spec_.rank; }
  [[nodiscard]] std::uint32_t size() const noexcept { return spec_.size(); }
  [[nodiscard]] Worker& worker() noexcept { return worker_; }

  /// Passes messages on in their order, in both directions at once. On the worker's thread. Throws what the link
  /// throws, with the peer before it.
  void exchange(const std::vector<LinkMessage>& sends, const std::vector<LinkMessage>& receives, Deadline deadline) {
    if (sends.empty() || receives.empty()) {
      send(sends, deadline);
      receive(receives, deadline);
      return;
    }
    sending_.messages = &sends;
    sender_.start(sending_, deadline);
    const SenderRelease sender_release{sender_, sending_};
    try {
      receive(receives, deadline);
    } catch (const TransportError&) {
      if (const std::optional<TransportError> first = sender_.failure()) {
        throw TransportError(*first);
      }
      throw;
    }
    (void)sender_.wait(sending_, Deadline::never());
  }

 private:
  class Sending final : public Worker::Task {
   public:
    explicit Sending(LinkGroup& group) : group_(group) {}
    const std::vector<LinkMessage>* messages = nullptr;

   private:
    void run(Deadline deadline) override { group_.send(*messages, deadline); }
    [[nodiscard]] std::string what() const override { return "sending"; }

    LinkGroup& group_;
  };

  /// However an exchange ends, the sender no longer accesses its buffers after it.
  struct SenderRelease {
    Worker& sender;
    Sending& sending;
    ~SenderRelease() { sender.drop(sending); }
  };

  /// Runs `act`, which exchanges data with `peer` only. An exception names that member.
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

  void send(const std::vector<LinkMessage>& messages, Deadline deadline) {
    for (const LinkMessage& message : messages) {
      with_peer("sending to ", message.peer, [&] {
        const MessageHeader header = {message.id, message.bytes};
        link_.send(message.peer, &header, sizeof(header), deadline);
        link_.send(message.peer, message.data, message.bytes, deadline);
      });
      wire_bytes_.fetch_add(sizeof(MessageHeader) + message.bytes, std::memory_order_relaxed);
    }
  }

  void receive(const std::vector<LinkMessage>& messages, Deadline deadline) {
    for (const LinkMessage& message : messages) {
      with_peer("receiving from ", message.peer, [&] {
        const MessageHeader expected = {message.id, message.bytes};
        MessageHeader header;
        link_.receive(message.peer, &header, sizeof(header), deadline);
        if (header != expected) {
          throw TransportError(SR_INVALID, "expected " + std::to_string(expected.bytes) + " bytes of op " +
                                               std::to_string(expected.id) + ", and " + std::to_string(header.bytes) +
                                               " of op " + std::to_string(header.id) +
                                               " came: the two members do not do the same");
        }
        link_.receive(message.peer, message.data, message.bytes, deadline);
      });
    }
  }

  GroupSpec spec_;
  std::atomic<std::uint64_t>& wire_bytes_;
  Sending sending_;
  Worker worker_;
  Worker sender_;
  Cancel cancel_;
  Link link_;
};

/// Runs the agreement of the members on an op.
template <TwoFunctionLink Link>
class AgreeTask final : public Worker::Task {
 public:
  AgreeTask(LinkGroup<Link>& group, const OpSpec& op)
      : group_(group), op_(op), agreement_(op, group.rank(), group.size()) {}
  ~AgreeTask() override { group_.worker().drop(*this); }

  /// Throws TransportError.
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
      sends.push_back({to, agreement_id, agreement_.outgoing(round, to), agreement_.bytes(round)});
      receives.push_back({from, agreement_id, agreement_.incoming(round, from), agreement_.bytes(round)});
    }
    group_.exchange(sends, receives, deadline);
  }
  [[nodiscard]] std::string what() const override { return "preparing " + describe(op_); }

  LinkGroup<Link>& group_;
  const OpSpec& op_;
  Agreement agreement_;
};

}  // namespace detail

}  // namespace shardrun::sdk
