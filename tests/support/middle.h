#pragma once

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <list>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <tuple>
#include <utility>

#include "core/files/descriptor.h"

namespace shardrun::test {

/// Connects to a port of the loopback interface. The descriptor is not open if nobody listens there.
[[nodiscard]] inline files::FileDescriptor connect_to_port(std::uint16_t port) {
  files::FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return ::connect(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0
             ? std::move(socket)
             : files::FileDescriptor();
}

/// Listens at a port of the loopback interface; 0: any free port. Returns the port, too.
[[nodiscard]] inline std::pair<files::FileDescriptor, std::uint16_t> listen_at(std::uint16_t port) {
  files::FileDescriptor socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int yes = 1;
  ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof address;
  ::bind(socket.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address);
  ::listen(socket.get(), 64);
  ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &size);
  return {std::move(socket), ntohs(address.sin_port)};
}

/// Reads `size` bytes, or fewer if the connection ends before.
[[nodiscard]] inline std::string read_bytes(int socket, std::size_t size) {
  std::string bytes(size, '\0');
  std::size_t got = 0;
  while (got < size) {
    const ssize_t more = ::read(socket, bytes.data() + got, size - got);
    if (more <= 0) {
      break;
    }
    got += static_cast<std::size_t>(more);
  }
  bytes.resize(got);
  return bytes;
}

/// Reads a whole TLS record with its header; "" if the connection ends.
[[nodiscard]] inline std::string read_record(int socket) {
  const std::string header = read_bytes(socket, 5);
  if (header.size() < 5) {
    return {};
  }
  const auto byte = [&](std::size_t at) { return std::size_t{static_cast<unsigned char>(header[at])}; };
  const std::string body = read_bytes(socket, byte(3) << 8U | byte(4));
  return body.empty() ? "" : header + body;
}

inline void send_bytes(int socket, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = ::send(socket, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) {
      return;
    }
    bytes.remove_prefix(static_cast<std::size_t>(sent));
  }
}

/// A man in the middle between ranks and their launcher. Ranks connect to him, and he connects to the launcher. He
/// records all TLS records, and forwards what `change` returns for them.
class Middle {
 public:
  struct Record {
    int connection;  ///< index of the connection, in the order of their making
    bool to_launcher;
    int number;  ///< index of the record in this connection and direction
    std::string bytes;
  };
  /// What is sent instead of a record: onwards to its receiver, and back to its sender.
  struct Sent {
    std::string onwards;
    std::string back = {};
  };
  using Change = std::function<Sent(const Record& record)>;

  /// `change` is called on any thread, one call at a time.
  Middle(std::uint16_t launcher, Change change) : launcher_(launcher), change_(std::move(change)) {
    std::tie(listener_, port_) = listen_at(0);
    acceptor_ = std::thread([this] { accept(); });
  }
  Middle(const Middle&) = delete;
  Middle& operator=(const Middle&) = delete;
  ~Middle() { end(); }

  [[nodiscard]] std::uint16_t port() const { return port_; }

  void end() {
    if (!acceptor_.joinable()) {
      return;
    }
    ended_ = true;
    ::shutdown(listener_.get(), SHUT_RDWR);
    acceptor_.join();
    for (Line& line : lines_) {
      line.cut();
      line.up.join();
      line.down.join();
    }
  }

  /// All bytes received from both sides. REQUIRES: end() was called.
  [[nodiscard]] const std::string& seen() const { return seen_; }
  /// The bytes that ranks sent over the first connection. REQUIRES: end() was called.
  [[nodiscard]] const std::string& first_seen_from_rank() const { return first_seen_from_rank_; }

 private:
  struct Line {
    files::FileDescriptor rank;
    files::FileDescriptor launcher;
    std::thread up;
    std::thread down;

    void cut() const {
      ::shutdown(rank.get(), SHUT_RDWR);
      ::shutdown(launcher.get(), SHUT_RDWR);
    }
  };

  void accept() {
    for (int connection = 0; !ended_; ++connection) {
      files::FileDescriptor rank(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
      if (!rank.is_open()) {
        return;
      }
      Line& line = lines_.emplace_back();
      line.rank = std::move(rank);
      line.launcher = connect_to_port(launcher_);
      line.up = std::thread([this, &line, connection] { pump(line, connection, true); });
      line.down = std::thread([this, &line, connection] { pump(line, connection, false); });
    }
  }

  void pump(const Line& line, int connection, bool to_launcher) {
    const int from = to_launcher ? line.rank.get() : line.launcher.get();
    const int to = to_launcher ? line.launcher.get() : line.rank.get();
    for (int number = 0;; ++number) {
      std::string bytes = read_record(from);
      if (bytes.empty()) {
        return line.cut();
      }
      Sent sent;
      {
        const std::lock_guard lock(mutex_);
        seen_ += bytes;
        if (connection == 0 && to_launcher) {
          first_seen_from_rank_ += bytes;
        }
        sent = change_({connection, to_launcher, number, std::move(bytes)});
      }
      send_bytes(to, sent.onwards);
      send_bytes(from, sent.back);
    }
  }

  const std::uint16_t launcher_;
  const Change change_;
  files::FileDescriptor listener_;
  std::uint16_t port_ = 0;
  std::atomic<bool> ended_ = false;
  std::mutex mutex_;
  std::string seen_;
  std::string first_seen_from_rank_;
  std::list<Line> lines_;
  std::thread acceptor_;
};

/// A Change that forwards each record unchanged.
[[nodiscard]] inline Middle::Sent as_it_is(const Middle::Record& record) { return {.onwards = record.bytes}; }

}  // namespace shardrun::test
