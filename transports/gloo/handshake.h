#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "transports/gloo/keys.h"
#include "transports/gloo/socket.h"

namespace shardrun::gloo_transport {

/// How two members prove to each other, over a connection that nothing else went over before, that they know the secret
/// and mean the same connection:
///
///     connector  magic, its member's number, nonce   44 bytes
///     acceptor   nonce                               32
///     connector  proof                               32
///     acceptor   proof                               32
///
/// The acceptor sends its proof only after it has checked the connector's. So its proof also tells the connector that
/// it was accepted. Each side reads exactly these bytes, and none that follow.
class Handshake {
 public:
  enum class State { under_way, proven, refused };

  /// What the member of that number and this one mean to be; `member` came from the other end and may be anything.
  /// Throws std::exception where that cannot be.
  using SubjectOf = std::function<Subject(std::uint32_t member)>;

  /// Of the side that connects, whose number in the group is `own`. The socket does not block, and may not be connected
  /// yet.
  [[nodiscard]] static Handshake connecting(Socket socket, const Key& secret, std::uint32_t own, SubjectOf subject_of);
  /// Of the side that listens.
  [[nodiscard]] static Handshake accepting(Socket socket, const Key& secret, SubjectOf subject_of);

  /// Goes on as far as the bytes that have come allow. It does not wait.
  State advance();

  /// POLLIN or POLLOUT, for which it waits.
  [[nodiscard]] short awaited() const noexcept;
  [[nodiscard]] const Socket& socket() const noexcept { return socket_; }
  /// Why the state is `refused`.
  [[nodiscard]] const std::string& why() const noexcept { return why_; }

  // REQUIRES: the state is `proven`.
  [[nodiscard]] std::uint32_t connector() const noexcept { return connector_; }
  [[nodiscard]] Socket take_socket() noexcept { return std::move(socket_); }
  [[nodiscard]] const Key& sending_key() const noexcept {
    return connects_ ? proofs_.to_acceptor : proofs_.to_connector;
  }
  [[nodiscard]] const Key& receiving_key() const noexcept {
    return connects_ ? proofs_.to_connector : proofs_.to_acceptor;
  }
  [[nodiscard]] Protection protection() const noexcept { return protection_; }

 private:
  static constexpr std::size_t flights = 4;
  static constexpr std::size_t hello_bytes = 44;

  Handshake(Socket socket, const Key& secret, bool connects, SubjectOf subject_of);

  [[nodiscard]] bool is_sent_here() const noexcept { return (flight_ % 2 == 0) == connects_; }
  [[nodiscard]] std::size_t flight_bytes() const noexcept { return flight_ == 0 ? hello_bytes : sizeof(Key); }
  [[nodiscard]] bool move_bytes();
  void compose();
  void take();
  void prove_as(std::uint32_t connector);
  void refuse(std::string why);

  Socket socket_;
  Key secret_;
  SubjectOf subject_of_;
  bool connects_;
  State state_ = State::under_way;
  std::string why_;
  std::uint32_t connector_ = 0;
  Key nonce_;  ///< of this side
  Key other_nonce_ = {};
  Proofs proofs_ = {};
  Protection protection_ = Protection::none;
  std::size_t flight_ = 0;  ///< that is sent or received now
  std::size_t moved_ = 0;   ///< bytes of it
  std::array<std::uint8_t, hello_bytes> bytes_ = {};
};

}  // namespace shardrun::gloo_transport
