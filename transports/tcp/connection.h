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

/// How the bytes of a proven connection go over the wire.
enum class Protection : std::uint8_t {
  tls,   ///< in TLS records
  none,  ///< as they are
};

/// One of the two connections between two members: it carries what the one who connected says. It begins with a TLS
/// handshake, which proves the run's secret and the connection's identity, whatever the protection is. Then the one who
/// accepted says a byte, so that the other learns that it was accepted.
///
/// Nothing waits. One thread at a time may use it; the members' two directions never share a TLS object.
class Connection {
 public:
  enum class State { under_way, proven, refused };

  /// The most bytes that the other end may send before it is proven.
  static constexpr std::size_t most_unproven_bytes = 4096;
  /// After so many records the key is renewed. AES-GCM allows 2^24 for one.
  static constexpr int records_per_key = 1 << 16;

  /// The socket is connected and non-blocking. `tls` says which end this is. Throws Error{internal} if OpenSSL fails.
  Connection(Socket socket, tls::Connection tls, Protection protection);
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  /// Continues the handshake as far as it can without waiting.
  State advance();
  /// Why the state is `refused`.
  [[nodiscard]] const std::string& why() const noexcept { return why_; }

  /// POLLIN or POLLOUT: what the last call could not do.
  [[nodiscard]] short awaited() const noexcept { return awaited_; }
  [[nodiscard]] int descriptor() const noexcept { return socket_.get(); }

  // REQUIRES: the state is `proven`. Each passes on what it can and returns how many bytes; 0: the socket is not ready.
  // Throws std::runtime_error if the connection has broken or bytes came that the other end has not sent.

  /// After a part was sent, the next call begins with the rest.
  [[nodiscard]] std::size_t send(std::span<const iovec> parts);
  [[nodiscard]] std::size_t receive(std::span<const iovec> parts);

  // For the TLS object: as ::recv, and what it has to say.
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
  tls::Connection tls_;  ///< null once it is proven where nothing is protected
  Protection protection_;
  State state_ = State::under_way;
  std::string why_;
  short awaited_;
  bool is_closed_ = false;  ///< by the other end
  int error_ = 0;           ///< the socket's, if any
  std::size_t unproven_bytes_ = 0;
  int records_ = 0;  ///< sent with the current key

  bool has_accepted_ = false;  ///< a server: has said so
  std::vector<char> written_;  ///< what TLS has to say, in records
  std::size_t flushed_ = 0;    ///< bytes of it that the socket has taken
  std::size_t encrypted_ = 0;  ///< bytes in it that `send` has not reported yet
};

}  // namespace shardrun::tcp_transport
