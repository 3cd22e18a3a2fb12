#include "core/cli/process.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <string_view>

#include "core/launch/signals.h"

namespace shardrun::cli {
namespace {

constexpr std::array<int, 3> stop_signals = {SIGINT, SIGTERM, SIGHUP};

volatile std::sig_atomic_t signal_that_asked = 0;
std::atomic<std::int64_t> asked_at = 0;  // nanoseconds
static_assert(std::atomic<std::int64_t>::is_always_lock_free);

extern "C" void on_stop_signal(int signal);

bool has_action(int signal, void (*action)(int)) noexcept {
  struct sigaction current = {};
  return ::sigaction(signal, nullptr, &current) == 0 && current.sa_handler == action;
}

void say(std::string_view text) noexcept {
  [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, text.data(), text.size());
}

extern "C" void on_stop_signal(int signal) {
  const int error_number = errno;
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  const std::int64_t now = time.tv_sec * std::int64_t{1'000'000'000} + time.tv_nsec;
  if (signal_that_asked == 0) {
    asked_at = now;
    signal_that_asked = signal;
  } else if (signal != signal_that_asked || now - asked_at > std::chrono::nanoseconds(launch::same_request).count()) {
    say("shardrun: ended at once by a second signal (SIG");
    say(sigabbrev_np(signal));
    say("): the results are not saved\n");
    std::signal(signal, SIG_DFL);
    ::raise(signal);
  }
  errno = error_number;
}

/// Whoever read the output has gone. As long as it is not read, each line that follows comes back with the same signal.
extern "C" void on_broken_pipe(int signal) {
  if (signal_that_asked == 0) {
    signal_that_asked = signal;
  }
  std::signal(signal, SIG_IGN);
}

}  // namespace

void secure_process() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(stream, F_GETFD) == -1 && errno == EBADF && ::open("/dev/null", O_RDWR) != stream) {
      std::abort();  // no machine without /dev/null, and nowhere to say so
    }
  }
  std::signal(SIGXFSZ, SIG_IGN);
}

void catch_stop_signals() {
  for (const int each : stop_signals) {
    if (!has_action(each, SIG_IGN)) {
      std::signal(each, on_stop_signal);
    }
  }
  if (!has_action(SIGPIPE, SIG_IGN)) {
    std::signal(SIGPIPE, on_broken_pipe);
  }
}

int stop_signal() noexcept { return signal_that_asked; }

}  // namespace shardrun::cli
