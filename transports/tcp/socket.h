#pragma once

#include <sys/socket.h>

#include <string>
#include <utility>

namespace shardrun::tcp_transport {

/// Owns a file descriptor.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int descriptor) noexcept : descriptor_(descriptor) {}
  Socket(Socket&& other) noexcept : descriptor_(std::exchange(other.descriptor_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
  }
  ~Socket();

  [[nodiscard]] int get() const noexcept { return descriptor_; }
  [[nodiscard]] explicit operator bool() const noexcept { return descriptor_ >= 0; }

 private:
  int descriptor_ = -1;
};

/// An IP address and a port.
struct Endpoint {
  sockaddr_storage address = {};
  socklen_t bytes = 0;  ///< 0: none yet

  /// The endpoint as text: "127.0.0.1 4711".
  [[nodiscard]] std::string text() const;
};

// The following throw std::runtime_error.

/// A non-blocking listener on a free port of `host`, at the first of the host's addresses that belongs to this machine.
[[nodiscard]] Socket listen_on(const std::string& host);
/// Parses what Endpoint::text prints.
[[nodiscard]] Endpoint endpoint_of(const std::string& text);
[[nodiscard]] Endpoint own_end(const Socket& socket);
[[nodiscard]] Endpoint other_end(const Socket& socket);

}  // namespace shardrun::tcp_transport
