#pragma once

#include <shardrun/sdk/transport.hpp>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

namespace my_plugins {

namespace sdk = shardrun::sdk;

/// Throws a TransportError with a status and the text of errno.
[[noreturn]] inline void fail(std::int32_t status, const std::string& attempted, int error = errno) {
  throw sdk::TransportError(status, "cannot " + attempted + ": " + std::generic_category().message(error));
}

class Socket {
 public:
  explicit Socket(int fd = -1) : fd_(fd) {}
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Socket() {
    if (fd_ >= 0) {
      close(fd_);
    }
  }

  [[nodiscard]] int fd() const noexcept { return fd_; }

 private:
  int fd_;
};

/// TCP over IPv4 between every two members of a group. They find each other through the job's store.
class TcpLink {
 public:
  TcpLink(const sdk::Config& config, const sdk::GroupSpec& group, const sdk::Cancel& cancel)
      : cancel_(cancel), peers_(group.size()) {
    const Socket listener = open_socket();
    std::random_device random;
    const Contact mine = {listen(listener, config.address), std::uint64_t{random()} << 32U | random()};
    const std::string prefix = key_prefix(group);
    config.host.store_set(prefix + std::to_string(group.rank), bytes_of(mine));
    for (std::uint32_t peer = 0; peer < group.rank; ++peer) {
      const auto theirs = read<Contact>(config.host.store_get(prefix + std::to_string(peer), group.deadline));
      peers_[peer] = connect(theirs.address, group.deadline);
      const Greeting greeting = {theirs.token, group.rank};
      send(peer, &greeting, sizeof(greeting), group.deadline);
    }
    for (std::uint32_t missing = group.size() - 1 - group.rank; missing > 0;) {
      wait(listener, POLLIN, group.deadline);
      Socket guest(accept4(listener.fd(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
      const Greeting greeting = greeting_of(guest, group.deadline);
      if (greeting.token == mine.token && greeting.rank < group.size()) {
        set_no_delay(guest);
        peers_[greeting.rank] = std::move(guest);
        --missing;
      }
    }
  }

  void send(std::uint32_t peer, const void* data, std::size_t bytes, sdk::Deadline deadline) {
    const auto* from = static_cast<const char*>(data);
    while (bytes != 0) {
      const ssize_t sent = ::send(peers_[peer].fd(), from, bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
      const std::size_t passed = passed_on(peers_[peer], sent, POLLOUT, deadline);
      from += passed;
      bytes -= passed;
    }
  }

  void receive(std::uint32_t peer, void* data, std::size_t bytes, sdk::Deadline deadline) {
    receive_from(peers_[peer], data, bytes, deadline);
  }

 private:
  struct Contact {
    sockaddr_in address = {};
    std::uint64_t token = 0;
  };
  struct Greeting {
    std::uint64_t token = 0;
    std::uint64_t rank = 0;
  };

  template <class T>
  static std::string bytes_of(const T& value) {
    return {reinterpret_cast<const char*>(&value), sizeof(value)};
  }
  template <class T>
  static T read(const std::string& bytes) {
    T value;
    std::memcpy(&value, bytes.data(), sizeof(value));
    return value;
  }

  /// A prefix in the store that no other group uses. A key can be set only once, and ids are unique only among groups
  /// that exist at the same time. So the prefix contains the members, and counts their groups with that id.
  static std::string key_prefix(const sdk::GroupSpec& group) {
    static std::map<std::string, int> generations;  // one thread at a time makes groups
    std::string members;
    for (const std::uint32_t member : group.members) {
      members += std::to_string(member) + ",";
    }
    const std::string prefix =
        "tcp/" + std::to_string(group.id) + "/" + std::to_string(std::hash<std::string>()(members));
    return prefix + "/" + std::to_string(++generations[prefix]) + "/";
  }

  static Socket open_socket() {
    Socket socket(::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (socket.fd() < 0) {
      fail(SR_INTERNAL, "open a socket");
    }
    return socket;
  }

  /// Listens on a free port.
  static sockaddr_in listen(const Socket& socket, const std::string& at) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    if (inet_pton(AF_INET, at.c_str(), &address.sin_addr) != 1) {
      throw sdk::TransportError(SR_INVALID, "'" + at + "' is no IPv4 address");
    }
    socklen_t size = sizeof(address);
    auto* const raw = reinterpret_cast<sockaddr*>(&address);
    if (bind(socket.fd(), raw, size) != 0 || ::listen(socket.fd(), SOMAXCONN) != 0 ||
        getsockname(socket.fd(), raw, &size) != 0) {
      fail(SR_INTERNAL, "listen at " + at);
    }
    return address;
  }

  static void set_no_delay(const Socket& socket) {
    const int on = 1;
    setsockopt(socket.fd(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  }

  [[nodiscard]] Socket connect(const sockaddr_in& address, sdk::Deadline deadline) const {
    Socket socket = open_socket();
    if (::connect(socket.fd(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
      int error = errno;
      if (error == EINPROGRESS) {
        wait(socket, POLLOUT, deadline);
        socklen_t size = sizeof(error);
        getsockopt(socket.fd(), SOL_SOCKET, SO_ERROR, &error, &size);
      }
      if (error != 0) {
        fail(SR_PEER_LOST, "connect", error);
      }
    }
    set_no_delay(socket);
    return socket;
  }

  /// Anyone on this machine may connect. A connection that closes, or lacks the token, is dropped. One that sends
  /// nothing delays the group.
  [[nodiscard]] Greeting greeting_of(const Socket& guest, sdk::Deadline deadline) const {
    Greeting greeting;
    try {
      receive_from(guest, &greeting, sizeof(greeting), deadline);
    } catch (const sdk::TransportError& error) {
      if (error.status() != SR_PEER_LOST) {
        throw;
      }
      greeting.token = 0;
    }
    return greeting;
  }

  void receive_from(const Socket& socket, void* data, std::size_t bytes, sdk::Deadline deadline) const {
    auto* to = static_cast<char*>(data);
    while (bytes != 0) {
      const std::size_t passed = passed_on(socket, recv(socket.fd(), to, bytes, MSG_DONTWAIT), POLLIN, deadline);
      to += passed;
      bytes -= passed;
    }
  }

  /// The number of bytes that a call passed on, from its `result`. Where the call would have blocked: waits for
  /// `events` and returns 0.
  [[nodiscard]] std::size_t passed_on(const Socket& socket, ssize_t result, short events,
                                      sdk::Deadline deadline) const {
    if (result > 0) {
      return static_cast<std::size_t>(result);
    }
    if (result == 0) {
      throw sdk::TransportError(SR_PEER_LOST, "the peer has closed the connection");
    }
    if (errno == EAGAIN) {
      wait(socket, events, deadline);
    } else if (errno != EINTR) {
      fail(SR_PEER_LOST, "reach the peer");
    }
    return 0;
  }

  void wait(const Socket& socket, short events, sdk::Deadline deadline) const {
    pollfd waiting = {.fd = socket.fd(), .events = events, .revents = 0};
    while (poll(&waiting, 1, 50) <= 0) {
      cancel_.check();
      if (deadline.passed()) {
        throw sdk::TransportError(SR_TIMEOUT, "the deadline passed");
      }
    }
  }

  const sdk::Cancel& cancel_;
  std::vector<Socket> peers_;
};

}  // namespace my_plugins
