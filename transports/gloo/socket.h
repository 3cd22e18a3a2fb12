#pragma once

#include <sys/socket.h>

#include <string>
#include <utility>

namespace shardrun::gloo_transport {

/// Owns a file descriptor.
class Socket {
 public:
  Socket() = default;
  explicit Socket(int descriptor) noexcept : descriptor_(descriptor) {}
  Socket(Socket&& other) noexcept : descriptor_(other.release()) {}
  Socket& operator=(Socket&& other) noexcept {
    Socket old(std::exchange(descriptor_, other.release()));
    return *this;
  }
  ~Socket();

  [[nodiscard]] int get() const noexcept { return descriptor_; }
  [[nodiscard]] explicit operator bool() const noexcept { return descriptor_ >= 0; }
  [[nodiscard]] int release() noexcept { return std::exchange(descriptor_, -1); }

 private:
  int descriptor_ = -1;
};

/// An IP address and a port.
struct Endpoint {
  sockaddr_storage address = {};
  socklen_t bytes = 0;

  /// "127.0.0.1 4711"
  [[nodiscard]] std::string text() const;
};

// All of these throw std::runtime_error.

/// A non-blocking listener on a free port of `host`, an address of one of this machine's interfaces.
[[nodiscard]] Socket listen_on(const std::string& host);
/// Parses what Endpoint::text prints.
[[nodiscard]] Endpoint endpoint_of(const std::string& text);
[[nodiscard]] Endpoint own_end(const Socket& socket);
[[nodiscard]] Endpoint other_end(const Socket& socket);

/// Whether a connection between the two addresses stays within one machine: both are loopback addresses, or they are
/// equal. Ports do not matter. Does not throw.
[[nodiscard]] bool is_within_machine(const Endpoint& from, const Endpoint& to) noexcept;

}  // namespace shardrun::gloo_transport
