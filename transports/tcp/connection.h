#pragma once

#include <sys/uio.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/tls/psk.h"
#include "transports/tcp/socket.h"

namespace shardrun::tcp_transport {

/// How bytes are sent after both ends have proven their identity.
enum class Protection : std::uint8_t {
  tls,   ///< in TLS records
  none,  ///< unprotected
};

/// One of the two connections between two members: it carries data from the member that connected. It begins with a TLS
/// handshake, which proves the run's secret and the connection's identity, even if later bytes are unprotected. Then
/// the accepting end sends a byte, so that the other learns that it was accepted.
///
/// No function waits. One thread at a time may use it. The two directions between members never share a TLS object.
class Connection {
 public:
  enum class State { under_way, proven, refused };

  /// The largest number of bytes that the other end may send before it has proven its identity.
  static constexpr std::size_t most_unproven_bytes = 4096;
  /// Records after which the key is renewed. AES-GCM allows 2^24 per key.
  static constexpr int records_per_key = 1 << 16;

  /// The socket is connected and non-blocking. `tls`: the state of this end, the client's or the server's. If OpenSSL
  /// fails, throws Error{internal}.
  Connection(Socket socket, tls::Connection tls, Protection protection);
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  /// Continues the handshake as far as it can without waiting.
  State advance();
  /// Why the state is `refused`.
  [[nodiscard]] const std::string& why() const noexcept { return why_; }

  /// POLLIN or POLLOUT: the event for which the last call would have had to wait.
  [[nodiscard]] short awaited() const noexcept { return awaited_; }
  [[nodiscard]] int descriptor() const noexcept { return socket_.get(); }

  // The following REQUIRE that the state is `proven`. Each passes on as much as possible and returns the number of
  // bytes; 0: the socket is not ready. They throw std::runtime_error if the connection has broken or bytes came that
  // the other end has not sent.

  /// If only a part was sent, the next call must begin with the rest.
  [[nodiscard]] std::size_t send(std::span<const iovec> parts);
  [[nodiscard]] std::size_t receive(std::span<const iovec> parts);

  // For the TLS object: reads like ::recv, and keeps what TLS writes.
  [[nodiscard]] std::ptrdiff_t read_socket(void* to, std::size_t bytes);
  void keep(const char* from, std::size_t bytes) noexcept;

 private:
  [[nodiscard]] bool shake_hands();
  void write_record(const void* data, std::size_t bytes);
  [[nodiscard]] std::size_t encrypt(std::span<const iovec> parts);
  [[nodiscard]] bool flush();
  [[nodiscard]] std::size_t passed_by_tls(int result);
  [[nodiscard]] std::size_t passed_by_socket(std::ptrdiff_t result, short awaited);
  [[noreturn]] void broken(const std::string& tls_reason) const;

  Socket socket_;
  tls::Connection tls_;  ///< null once the identity is proven, if bytes are not protected
  Protection protection_;
  State state_ = State::under_way;
  std::string why_;
  short awaited_;
  bool is_closed_ = false;  ///< the other end has closed it
  int error_ = 0;           ///< the socket's, if any
  std::size_t unproven_bytes_ = 0;
  int records_ = 0;  ///< records sent with the current key

  bool has_accepted_ = false;  ///< for a server: it has sent the byte that says so
  std::vector<char> written_;  ///< records that TLS has written
  std::size_t flushed_ = 0;    ///< bytes of it that the socket has taken
  std::size_t encrypted_ = 0;  ///< bytes in it that `send` has not reported to its caller yet
};

}  // namespace shardrun::tcp_transport
