#pragma once

#include <shardrun/sdk/transport.hpp>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "transports/gloo/handshake.h"
#include "transports/gloo/socket.h"

namespace shardrun::gloo_transport {

/// Connects the members of a group: one authenticated connection to each other member, on the calling thread.
/// Connections of strangers (they prove nothing) are dropped and counted. At most `most_strangers` plus the group's
/// size are open at a time. Beyond that the oldest is dropped; a member that was dropped connects again.
class GroupRendezvous {
 public:
  static constexpr std::size_t most_strangers = 64;

  /// The binding of a connection between two members, with these addresses.
  using BindingOf = std::function<ChannelBinding(std::uint32_t connector, std::uint32_t acceptor, const Endpoint& from,
                                                 const Endpoint& to)>;
  /// Where a member listens. Waits briefly; nothing if it is not known yet. Throws TransportError.
  using AddressOf = std::function<std::optional<std::string>(std::uint32_t member)>;

  /// This member connects to the members with lower numbers. `listener` is listening. The first three arguments outlive
  /// this.
  GroupRendezvous(const sdk::GroupSpec& group, const sdk::TransportHost& host, const Key& secret, BindingOf binding_of,
                  AddressOf address_of, Socket listener);

  /// Returns when all members are connected. Throws TransportError.
  [[nodiscard]] std::vector<std::optional<Handshake>> run();

  /// Number of connections that were dropped because they proved nothing.
  [[nodiscard]] std::uint64_t strangers() const noexcept { return strangers_; }

 private:
  using Time = sdk::Deadline;

  /// An attempt to connect to a member with a lower number.
  struct Attempt {
    std::uint32_t member = 0;
    Endpoint to;                         ///< empty until it is known
    Socket socket;                       ///< until it is connected
    std::optional<Handshake> handshake;  ///< from then on
    Time next = Time::past();            ///< when to connect, where neither is set
    int failures = 0;
    std::string why;  ///< why the last one failed
  };
  /// A connection that the listener accepted.
  struct Incoming {
    Handshake handshake;
    Time accepted;
  };

  [[nodiscard]] bool is_complete() const;
  [[nodiscard]] bool find_address();
  void require_time();
  void wait();
  void attempt(Attempt& attempt);
  void begin(Attempt& attempt);
  [[nodiscard]] sdk::TransportError lost(const Attempt& attempt, int error) const;
  void try_again(Attempt& attempt, const std::string& why);
  void accept_connections();
  bool advance(Incoming& incoming);
  void advance_incoming();
  void drop_oldest();

  const sdk::GroupSpec& group_;
  const sdk::TransportHost& host_;
  const Key& secret_;
  BindingOf binding_of_;
  AddressOf address_of_;
  Socket listener_;
  Time accept_after_ = Time::past();  ///< set where no descriptor was free for another connection
  std::deque<Attempt> attempts_;
  std::deque<Incoming> incoming_;  ///< oldest first
  std::vector<std::optional<Handshake>> proven_;
  std::uint64_t strangers_ = 0;
};

}  // namespace shardrun::gloo_transport
