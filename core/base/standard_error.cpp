#include "core/base/standard_error.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstddef>
#include <cstdio>
#include <exception>

#include "core/base/stop.h"
#include "core/base/text.h"

namespace shardrun {
namespace {

constexpr std::chrono::milliseconds look{100};
constexpr std::chrono::milliseconds longest{1000};

/// Writes to a standard stream without blocking.
class Way {
 public:
  explicit Way(int stream) noexcept : stream_(stream) {
    struct stat status = {};
    if (::fstat(stream, &status) != 0) {
      return;
    }
    is_socket_ = S_ISSOCK(status.st_mode);
    if (S_ISFIFO(status.st_mode) || ::isatty(stream) == 1) {
      // Opens the stream anew, for this process alone: other processes share the open stream and its flags.
      std::array<char, 32> path{};
      std::snprintf(path.data(), path.size(), "/proc/self/fd/%d", stream);
      own_ = ::open(path.data(), O_WRONLY | O_NONBLOCK | O_CLOEXEC | O_NOCTTY);
      is_careful_ = own_ < 0 && !S_ISFIFO(status.st_mode);
    }
  }
  Way(const Way&) = delete;
  Way& operator=(const Way&) = delete;
  ~Way() {
    if (own_ >= 0) {
      ::close(own_);
    }
  }

  /// The length of the next piece to write: whole lines if they fit.
  [[nodiscard]] std::size_t piece_of(std::string_view text) const noexcept {
    constexpr std::size_t terminal_bytes = 256;  // a terminal that has room accepts this many without blocking
    const std::size_t most = is_careful_ ? terminal_bytes : PIPE_BUF;
    if (text.size() <= most) {
      return text.size();
    }
    const std::size_t end = text.rfind('\n', most - 1);
    return end == std::string_view::npos ? most : end + 1;
  }

  [[nodiscard]] ssize_t write(std::string_view piece) const noexcept {
    return is_socket_ ? ::send(stream_, piece.data(), piece.size(), MSG_DONTWAIT)
                      : ::write(descriptor(), piece.data(), piece.size());
  }

  /// Whether the stream has room, or has failed, within `look`. Also false if a signal interrupted the wait.
  [[nodiscard]] bool has_room() const noexcept {
    pollfd room = {.fd = descriptor(), .events = POLLOUT, .revents = 0};
    const int ready = ::poll(&room, 1, static_cast<int>(look.count()));
    return ready > 0 || (ready < 0 && errno != EINTR);
  }

 private:
  [[nodiscard]] int descriptor() const noexcept { return own_ >= 0 ? own_ : stream_; }

  int stream_;
  int own_ = -1;
  bool is_socket_ = false;
  bool is_careful_ = false;
};

}  // namespace

int write_for_person(int stream, std::string_view text, Patience patience) noexcept {
  const Way way(stream);
  auto waited = std::chrono::milliseconds::zero();
  while (!text.empty()) {
    if (way.has_room()) {
      const ssize_t written = way.write(text.substr(0, way.piece_of(text)));
      if (written >= 0) {
        text.remove_prefix(static_cast<std::size_t>(written));
        waited = std::chrono::milliseconds::zero();
        continue;
      }
      if (errno != EINTR && errno != EAGAIN) {
        return errno;
      }
      ::poll(nullptr, 0, static_cast<int>(look.count()));  // another writer has filled the room meanwhile
    }
    const bool is_bounded = patience == Patience::brief || stop_requested() != 0;
    waited = is_bounded ? waited + look : std::chrono::milliseconds::zero();
    if (waited >= longest) {
      return EAGAIN;
    }
  }
  return 0;
}

void write_to_standard_error(std::string_view text, Patience patience) noexcept {
  try {
    static_cast<void>(write_for_person(STDERR_FILENO, printable_lines(text), patience));
  } catch (const std::exception&) {
    static_cast<void>(write_for_person(STDERR_FILENO, "shardrun: out of memory\n", patience));
  }
}

}  // namespace shardrun
