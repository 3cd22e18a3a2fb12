#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>

#include "transports/gloo/keys.h"
#include "transports/gloo/socket.h"

namespace shardrun::gloo_transport {

/// Mutual authentication of two members over a new connection. Each proves that it knows the secret and means the same
/// connection:
///
///     connector  magic, its member's number, nonce   44 bytes
///     acceptor   nonce                               32
///     connector  proof                               32
///     acceptor   proof                               32
///
/// The acceptor sends its proof only after it has checked the connector's. So its proof also tells the connector that
/// it was accepted. Each side reads exactly these bytes and none that follow.
class Handshake {
 public:
  enum class State { under_way, proven, refused };

  /// The binding for the member that the other end claims to be; `member` is not trusted. Throws std::exception where
  /// there is none.
  using BindingOf = std::function<ChannelBinding(std::uint32_t member)>;

  /// The connecting side; `own` is its number in the group. The socket is non-blocking and may not be connected yet.
  [[nodiscard]] static Handshake connecting(Socket socket, const Key& secret, std::uint32_t own, BindingOf binding_of);
  /// The accepting side.
  [[nodiscard]] static Handshake accepting(Socket socket, const Key& secret, BindingOf binding_of);

  /// Continues as far as it can without waiting.
  State advance();

  /// POLLIN or POLLOUT, whichever it waits for.
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

  Handshake(Socket socket, const Key& secret, bool connects, BindingOf binding_of);

  [[nodiscard]] bool is_sent_here() const noexcept { return (flight_ % 2 == 0) == connects_; }
  [[nodiscard]] std::size_t flight_bytes() const noexcept { return flight_ == 0 ? hello_bytes : sizeof(Key); }
  [[nodiscard]] bool move_bytes();
  void compose();
  void take();
  void prove_as(std::uint32_t connector);
  void refuse(std::string why);

  Socket socket_;
  Key secret_;
  BindingOf binding_of_;
  bool connects_;
  State state_ = State::under_way;
  std::string why_;
  std::uint32_t connector_ = 0;
  Key nonce_;  ///< of this side
  Key other_nonce_ = {};
  Proofs proofs_ = {};
  Protection protection_ = Protection::none;
  std::size_t flight_ = 0;  ///< the one being sent or received
  std::size_t moved_ = 0;   ///< bytes of it so far
  std::array<std::uint8_t, hello_bytes> bytes_ = {};
};

}  // namespace shardrun::gloo_transport
