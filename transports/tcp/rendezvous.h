#pragma once

#include <shardrun/sdk/transport.hpp>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/tls/psk.h"
#include "transports/tcp/connection.h"
#include "transports/tcp/socket.h"

namespace shardrun::tcp_transport {

/// Connects the members of a group, on the calling thread: this member connects to each other one, and each other one
/// connects to this one. Connections of strangers, which prove nothing, are dropped and counted. At most
/// `most_strangers` plus the group's size are open at a time. Beyond that the oldest is dropped; a member that was
/// dropped connects again.
class Rendezvous {
 public:
  static constexpr std::size_t most_strangers = 64;

  struct Settings {
    const sdk::GroupSpec& group;
    const sdk::TransportHost& host;
    const tls::Key& secret;
    Protection protection = Protection::tls;
    std::string name;  ///< of the connected group: names its run, generation and members
    /// Returns the address at which a member listens. Waits briefly, and returns nothing if the member has not
    /// published it yet. Throws TransportError.
    std::function<std::optional<std::string>(std::uint32_t member)> address_of;
  };

  /// Indexed by member; null for this member.
  using Connections = std::vector<std::unique_ptr<Connection>>;
  struct Met {
    Connections outgoing;  ///< on which this member sends
    Connections incoming;  ///< on which it receives
    std::uint64_t strangers = 0;
  };

  /// `listener` must be listening. What the settings refer to outlives this object. If OpenSSL fails, throws
  /// Error{internal}.
  Rendezvous(Settings settings, Socket listener);

  /// Returns when all members are connected. Throws TransportError.
  [[nodiscard]] Met run();

 private:
  /// An attempt to connect to a member.
  struct Attempt {
    std::uint32_t member = 0;
    Endpoint to;
    Socket socket;                           ///< until the socket is connected
    std::unique_ptr<Connection> connection;  ///< once the socket is connected
    sdk::Deadline begun;
    sdk::Deadline next = sdk::Deadline::past();  ///< when to connect, if neither is set
    int failures = 0;
    std::string why;  ///< why the last attempt failed
  };
  /// A connection that the listener accepted.
  struct Incoming {
    std::unique_ptr<Connection> connection;
    std::shared_ptr<std::uint32_t> member;  ///< the member that the other end claims to be; `connection` proves it
    sdk::Deadline accepted;
  };

  [[nodiscard]] std::string identity(std::uint32_t from, std::uint32_t to, const std::string& ends) const;
  [[nodiscard]] std::string ends(const Endpoint& from, const Endpoint& to) const;
  [[nodiscard]] std::uint32_t sender_of(std::string_view offered) const;
  [[nodiscard]] bool is_complete() const;
  [[nodiscard]] bool find_address();
  void require_time();
  void wait();
  void attempt(Attempt& attempt);
  void begin(Attempt& attempt);
  [[nodiscard]] bool has_connected(Attempt& attempt);
  [[nodiscard]] sdk::TransportError lost(const Attempt& attempt, int error) const;
  void try_again(Attempt& attempt, const std::string& why);
  void accept_connections();
  [[nodiscard]] Incoming heard(Socket socket);
  [[nodiscard]] bool advance(Incoming& incoming);
  void advance_incoming();
  void drop_oldest();

  Settings settings_;
  tls::Context client_;
  tls::Context server_;
  Socket listener_;
  sdk::Deadline accept_after_ = sdk::Deadline::past();  ///< set if no descriptor was free for another connection
  std::deque<Attempt> attempts_;
  std::deque<Incoming> pending_;  ///< oldest first
  Met met_;
};

}  // namespace shardrun::tcp_transport
