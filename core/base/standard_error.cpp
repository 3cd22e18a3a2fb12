#include "core/base/standard_error.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <exception>

#include "core/base/printable.h"
#include "core/base/stop.h"

namespace shardrun {
namespace {

/// What a stream that can be written takes without waiting.
constexpr std::size_t piece_bytes = 256;

constexpr std::chrono::milliseconds look{100};
constexpr std::chrono::milliseconds patience{1000};  ///< once this process was asked to stop

/// Returns once the stream takes something, or has failed; false where it did not in time.
bool await_room(int stream) noexcept {
  for (auto waited = std::chrono::milliseconds::zero(); waited < patience;) {
    pollfd room = {.fd = stream, .events = POLLOUT, .revents = 0};
    if (::poll(&room, 1, static_cast<int>(look.count())) != 0) {
      return true;
    }
    waited = stop_requested() != 0 ? waited + look : std::chrono::milliseconds::zero();
  }
  return false;
}

}  // namespace

int write_for_person(int stream, std::string_view text) noexcept {
  while (!text.empty()) {
    if (!await_room(stream)) {
      return EAGAIN;
    }
    const ssize_t written = ::write(stream, text.data(), std::min(text.size(), piece_bytes));
    if (written < 0 && errno != EINTR && errno != EAGAIN) {
      return errno;
    }
    text.remove_prefix(written < 0 ? 0 : static_cast<std::size_t>(written));
  }
  return 0;
}

void write_to_standard_error(std::string_view text) noexcept {
  try {
    static_cast<void>(write_for_person(STDERR_FILENO, printable_lines(text)));
  } catch (const std::exception&) {
    static_cast<void>(write_for_person(STDERR_FILENO, "shardrun: out of memory\n"));
  }
}

}  // namespace shardrun
