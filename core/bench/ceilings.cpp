#include "core/bench/cases.h"

#include <fmt/format.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/crypto.h>
#include <poll.h>
#include <shardrun/sdk/transport/reduce.hpp>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstring>
#include <string>

#include "core/base/error.h"
#include "core/bench/statistics.h"
#include "core/files/descriptor.h"
#include "core/launch/protocol.h"

namespace shardrun::bench {
namespace {

constexpr std::chrono::seconds patience{10};
constexpr int step_ms = 50;

[[noreturn]] void fail(const char* what) {
  throw Error(ErrorCode::io,
              fmt::format("measuring a TCP stream between two ranks: {}: {}", what, std::strerror(errno)));
}

/// Waits for an event. Throws Error{io} after the deadline, Error{aborted} if the job is aborted.
void wait_for(int socket, short events, launch::Rank& rank, launch::Rank::Deadline deadline) {
  pollfd waiting = {.fd = socket, .events = events, .revents = 0};
  while (::poll(&waiting, 1, step_ms) <= 0) {
    if (rank.aborted().load(std::memory_order_relaxed)) {
      throw Error(ErrorCode::aborted, rank.abort_reason());
    }
    if (launch::Rank::Clock::now() >= deadline) {
      errno = ETIMEDOUT;
      fail("waiting for the other rank");
    }
  }
}

void send_all(int socket, const std::byte* from, std::size_t bytes, launch::Rank& rank) {
  for (std::size_t done = 0; done < bytes;) {
    const ssize_t sent = ::send(socket, from + done, bytes - done, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent > 0) {
      done += static_cast<std::size_t>(sent);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      wait_for(socket, POLLOUT, rank, launch::Rank::Clock::now() + patience);
    } else if (errno != EINTR) {
      fail("sending");
    }
  }
}

/// Returns false if the other side closed the connection before all bytes had come.
bool receive_all(int socket, std::byte* to, std::size_t bytes, launch::Rank& rank) {
  for (std::size_t done = 0; done < bytes;) {
    const ssize_t got = ::recv(socket, to + done, bytes - done, MSG_DONTWAIT);
    if (got > 0) {
      done += static_cast<std::size_t>(got);
    } else if (got == 0) {
      return false;
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      wait_for(socket, POLLIN, rank, launch::Rank::Clock::now() + patience);
    } else if (errno != EINTR) {
      fail("receiving");
    }
  }
  return true;
}

files::FileDescriptor new_socket(int family) {
  files::FileDescriptor socket(::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (socket.get() < 0) {
    fail("socket");
  }
  return socket;
}

/// A socket's address, in the system's form.
struct Endpoint {
  sockaddr_storage storage = {};
  socklen_t size = sizeof(sockaddr_storage);

  [[nodiscard]] sockaddr* address() { return reinterpret_cast<sockaddr*>(&storage); }
  [[nodiscard]] int family() const { return storage.ss_family; }
  [[nodiscard]] std::uint16_t port() const {
    static_assert(offsetof(sockaddr_in, sin_port) == offsetof(sockaddr_in6, sin6_port));
    return ntohs(reinterpret_cast<const sockaddr_in&>(storage).sin_port);
  }
};

Endpoint endpoint_at(const std::string& numeric_address, std::uint16_t port) {
  addrinfo hints = {};
  hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int failed = ::getaddrinfo(numeric_address.c_str(), std::to_string(port).c_str(), &hints, &found);
      failed != 0) {
    throw Error(ErrorCode::io, fmt::format("measuring a TCP stream between two ranks: '{}' is no address: {}",
                                           numeric_address, ::gai_strerror(failed)));
  }
  Endpoint endpoint = {.storage = {}, .size = found->ai_addrlen};
  std::memcpy(&endpoint.storage, found->ai_addr, found->ai_addrlen);
  ::freeaddrinfo(found);
  return endpoint;
}

/// The address at which the other rank reaches this one. Ranks that another launcher started can be on several
/// machines.
std::string address_for_peer(const launch::Rank& rank) {
  return rank.context().is_hosted ? rank.own_address() : "127.0.0.1";
}

/// The first bytes of the connection, which exclude strangers.
using Secret = launch::Token;

/// The receiving side: listens, publishes its address and secret, and accepts the connection that begins
/// with the secret.
files::FileDescriptor accept_stream(const std::string& key, launch::Rank& rank) {
  const std::string own = address_for_peer(rank);
  Endpoint endpoint = endpoint_at(own, 0);
  const files::FileDescriptor listener = new_socket(endpoint.family());
  if (::bind(listener.get(), endpoint.address(), endpoint.size) != 0 || ::listen(listener.get(), 8) != 0 ||
      ::getsockname(listener.get(), endpoint.address(), &endpoint.size) != 0) {
    fail("listening");
  }
  const Secret secret = launch::random_token();
  const std::string_view secret_text(reinterpret_cast<const char*>(secret.data()), secret.size());
  rank.set(key, fmt::format("{:5}{}{}", endpoint.port(), secret_text, own));
  const launch::Rank::Deadline deadline = launch::Rank::Clock::now() + patience;
  for (;;) {
    wait_for(listener.get(), POLLIN, rank, deadline);
    files::FileDescriptor stream(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    Secret found = {};
    if (stream.get() >= 0 &&
        receive_all(stream.get(), reinterpret_cast<std::byte*>(found.data()), found.size(), rank) &&
        ::CRYPTO_memcmp(found.data(), secret.data(), secret.size()) == 0) {
      return stream;
    }
  }
}

files::FileDescriptor connect_stream(const std::string& key, launch::Rank& rank) {
  const std::string told = rank.get(key, launch::Rank::no_deadline);
  std::uint16_t port = 0;
  const std::size_t digits = told.find_first_not_of(' ');
  std::from_chars(told.data() + digits, told.data() + 5, port);
  const std::string secret = told.substr(5, std::tuple_size_v<Secret>);
  Endpoint endpoint = endpoint_at(told.substr(5 + secret.size()), port);
  files::FileDescriptor stream = new_socket(endpoint.family());
  if (::connect(stream.get(), endpoint.address(), endpoint.size) != 0) {
    fail("connecting");
  }
  const int on = 1;
  ::setsockopt(stream.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  send_all(stream.get(), reinterpret_cast<const std::byte*>(secret.data()), secret.size(), rank);
  return stream;
}

/// Times a TCP stream. The receiver's times count, because a sender is done once the last bytes are in the kernel.
std::vector<double> measure_socket(const Case& each, std::size_t number, const ArenaLayout& layout, std::byte* arena,
                                   launch::Rank& rank) {
  const std::string key = fmt::format("socket/{}", number);
  const bool receives = rank.rank() == 1;
  if (rank.rank() > 1) {
    return std::vector<double>(static_cast<std::size_t>(each.iterations), 0);
  }
  const files::FileDescriptor stream = receives ? accept_stream(key, rank) : connect_stream(key, rank);
  std::memset(arena, 1, each.bytes);
  return timed(each, [&] {
    if (!receives) {
      send_all(stream.get(), arena + layout.send, each.bytes, rank);
    } else if (!receive_all(stream.get(), arena + layout.recv, each.bytes, rank)) {
      errno = ECONNRESET;
      fail("receiving");
    }
  });
}

}  // namespace

std::vector<double> measure_ceiling(const Case& each, std::size_t number, const ArenaLayout& layout, std::byte* arena,
                                    launch::Rank& rank) {
  if (each.what == What::socket) {
    return measure_socket(each, number, layout, arena, rank);
  }
  std::memset(arena + layout.send, 0, each.bytes);
  std::memset(arena + layout.recv, 0, each.bytes);
  if (each.what == What::copy) {
    return timed(each, [&] { std::memcpy(arena + layout.recv, arena + layout.send, each.bytes); });
  }
  const std::uint64_t share = each.bytes / sizeof(float) / static_cast<std::uint64_t>(rank.world_size());
  return timed(each,
               [&] { sdk::reduce(SR_DTYPE_F32, SR_REDUCE_SUM, arena + layout.recv, arena + layout.send, share); });
}

}  // namespace shardrun::bench
