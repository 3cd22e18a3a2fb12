#include "tests/unit/transports_gloo/system.h"

#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <vector>

namespace shardrun::test {
namespace {

constexpr std::size_t long_bytes = 1 << 20;

std::atomic<bool> first_is_held = false;
std::atomic<bool> is_held = false;

bool is_socket(int descriptor) {
  struct stat status = {};
  return fstat(descriptor, &status) == 0 && S_ISSOCK(status.st_mode);
}

}  // namespace

Writes& writes() noexcept {
  static Writes all;
  return all;
}

bool is_sigpipe_blocked() noexcept {
  sigset_t mask;
  return pthread_sigmask(SIG_BLOCK, nullptr, &mask) == 0 && sigismember(&mask, SIGPIPE) == 1;
}

HeldConnection::HeldConnection() {
  is_held = true;
  first_is_held = true;
}

bool HeldConnection::holds() const { return is_held && !first_is_held; }

void HeldConnection::release() {
  first_is_held = false;
  is_held = false;
  is_held.notify_all();
}

}  // namespace shardrun::test

/// Replaces the C library's function.
extern "C" ssize_t writev(int descriptor, const iovec* parts, int count) {
  using namespace shardrun::test;
  static const auto real = reinterpret_cast<decltype(&writev)>(dlsym(RTLD_NEXT, "writev"));
  if (!is_socket(descriptor)) {
    return real(descriptor, parts, count);
  }
  ++writes().count;
  writes().exposed += is_sigpipe_blocked() ? 0 : 1;
  std::vector<iovec> cut(parts, parts + count);
  std::size_t bytes = 0;
  for (const iovec& part : cut) {
    bytes += part.iov_len;
  }
  if (bytes < long_bytes) {
    return real(descriptor, parts, count);
  }
  const std::int64_t room = writes().room;
  if (room <= 0) {
    errno = EAGAIN;
    return -1;
  }
  auto left = static_cast<std::size_t>(room);
  for (iovec& part : cut) {
    part.iov_len = std::min(part.iov_len, left);
    left -= part.iov_len;
  }
  const ssize_t written = real(descriptor, cut.data(), count);
  if (written > 0 && room != INT64_MAX) {
    writes().room -= written;
  }
  return written;
}

/// Replaces the C library's function, too.
extern "C" int getpeername(int descriptor, sockaddr* address, socklen_t* bytes) noexcept {
  using namespace shardrun::test;
  static const auto real = reinterpret_cast<decltype(&getpeername)>(dlsym(RTLD_NEXT, "getpeername"));
  const int result = real(descriptor, address, bytes);
  if (first_is_held.exchange(false)) {
    is_held.wait(true);
  }
  return result;
}
