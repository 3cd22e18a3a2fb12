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

/// Brings the members of a group together: one proven connection to each other member, on the thread that calls. It
/// bears whoever else comes to its listener: strangers are dropped and counted, at most `most_strangers` and
/// as many as the group has members are heard at a time, the oldest goes, and a member that was dropped among them
/// comes again.
class Meeting {
 public:
  static constexpr std::size_t most_strangers = 64;

  /// What the member `connector` and the member `acceptor` mean a connection between these addresses to be.
  using SubjectOf =
      std::function<Subject(std::uint32_t connector, std::uint32_t acceptor, const Endpoint& from, const Endpoint& to)>;
  /// Where a member listens. Waits for it a short while; nothing: it is not known yet. Throws TransportError.
  using AddressOf = std::function<std::optional<std::string>(std::uint32_t member)>;

  /// Connects to the members with lower numbers. `listener` listens. The first three outlive this.
  Meeting(const sdk::GroupSpec& group, const sdk::TransportHost& host, const Key& secret, SubjectOf subject_of,
          AddressOf address_of, Socket listener);

  /// Returns when all members are there. Throws TransportError.
  [[nodiscard]] std::vector<std::optional<Handshake>> run();

  /// Connections that were dropped because they proved nothing.
  [[nodiscard]] std::uint64_t strangers() const noexcept { return strangers_; }

 private:
  using Time = std::int64_t;

  /// A connection to a member with a lower number, or an attempt at it.
  struct Attempt {
    std::uint32_t member = 0;
    Endpoint to;                         ///< without bytes as long as it is not known
    Socket socket;                       ///< until it is connected
    std::optional<Handshake> handshake;  ///< from then on
    Time next = 0;                       ///< when it is made, where neither is there
    int failures = 0;
    std::string why;  ///< the last one failed
  };
  /// Somebody who came to the listener.
  struct Visitor {
    Handshake handshake;
    Time came = 0;
  };

  [[nodiscard]] bool is_complete() const;
  [[nodiscard]] bool find_address();
  void require_time();
  void wait();
  void attempt(Attempt& attempt);
  void begin(Attempt& attempt);
  [[nodiscard]] sdk::TransportError lost(const Attempt& attempt, int error) const;
  void try_again(Attempt& attempt, const std::string& why);
  void welcome();
  bool hear(Visitor& visitor);
  void hear_visitors();
  void drop_oldest();

  const sdk::GroupSpec& group_;
  const sdk::TransportHost& host_;
  const Key& secret_;
  SubjectOf subject_of_;
  AddressOf address_of_;
  Socket listener_;
  Time deaf_until_ = 0;  ///< where there is no descriptor for one more connection
  std::deque<Attempt> attempts_;
  std::deque<Visitor> visitors_;  ///< the oldest first
  std::vector<std::optional<Handshake>> proven_;
  std::uint64_t strangers_ = 0;
};

}  // namespace shardrun::gloo_transport
