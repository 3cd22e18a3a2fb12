#include "transports/tcp/socket.h"

#include <netdb.h>
#include <netinet/in.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <system_error>

namespace shardrun::tcp_transport {
namespace {

/// More than the ranks of a large group, so that strangers who connect do not keep members out.
constexpr int backlog = 4096;

using Addresses = std::unique_ptr<addrinfo, decltype(&freeaddrinfo)>;

Addresses look_up(const std::string& host, const std::string& port, int flags) {
  addrinfo hints = {};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags;
  addrinfo* found = nullptr;
  const int status = getaddrinfo(host.c_str(), port.c_str(), &hints, &found);
  if (status != 0) {
    throw std::runtime_error(gai_strerror(status));
  }
  return {found, &freeaddrinfo};
}

bool is_every_address(const sockaddr& address) {
  if (address.sa_family == AF_INET6) {
    return IN6_IS_ADDR_UNSPECIFIED(&reinterpret_cast<const sockaddr_in6&>(address).sin6_addr) != 0;
  }
  return address.sa_family == AF_INET && reinterpret_cast<const sockaddr_in&>(address).sin_addr.s_addr == INADDR_ANY;
}

Endpoint end_of(int (*ask)(int, sockaddr*, socklen_t*) noexcept, const Socket& socket) {
  Endpoint end;
  end.bytes = sizeof(end.address);
  if (ask(socket.get(), reinterpret_cast<sockaddr*>(&end.address), &end.bytes) != 0) {
    throw std::system_error(errno, std::generic_category());
  }
  return end;
}

}  // namespace

Socket::~Socket() {
  if (descriptor_ >= 0) {
    ::close(descriptor_);
  }
}

std::string Endpoint::text() const {
  std::array<char, NI_MAXHOST> host = {};
  std::array<char, NI_MAXSERV> port = {};
  const int status = getnameinfo(reinterpret_cast<const sockaddr*>(&address), bytes, host.data(), host.size(),
                                 port.data(), port.size(), NI_NUMERICHOST | NI_NUMERICSERV);
  if (status != 0) {
    throw std::runtime_error(gai_strerror(status));
  }
  return std::string(host.data()) + " " + port.data();
}

Socket listen_on(const std::string& host) {
  const Addresses addresses = look_up(host, "0", 0);
  std::string why = "it has no address";
  for (const addrinfo* address = addresses.get(); address != nullptr; address = address->ai_next) {
    if (is_every_address(*address->ai_addr)) {
      why = "that is every address of this machine";
      continue;
    }
    Socket listener(::socket(address->ai_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (listener && ::bind(listener.get(), address->ai_addr, address->ai_addrlen) == 0 &&
        ::listen(listener.get(), backlog) == 0) {
      return listener;
    }
    why = std::generic_category().message(errno);
  }
  throw std::runtime_error(why);
}

Endpoint endpoint_of(const std::string& text) {
  const std::size_t space = text.find(' ');
  if (space == std::string::npos) {
    throw std::runtime_error("'" + text + "' is no address and port");
  }
  const Addresses found = look_up(text.substr(0, space), text.substr(space + 1), AI_NUMERICHOST | AI_NUMERICSERV);
  Endpoint end;
  end.bytes = found->ai_addrlen;
  std::memcpy(&end.address, found->ai_addr, found->ai_addrlen);
  return end;
}

Endpoint own_end(const Socket& socket) { return end_of(&getsockname, socket); }

Endpoint other_end(const Socket& socket) { return end_of(&getpeername, socket); }

}  // namespace shardrun::tcp_transport
