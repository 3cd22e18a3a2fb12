#include "core/cli/process.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <csignal>
#include <cstdlib>

namespace shardrun::cli {
namespace {

constexpr std::array<int, 3> stop_signals = {SIGINT, SIGTERM, SIGHUP};

volatile std::sig_atomic_t signal_that_asked = 0;

extern "C" void on_stop_signal(int signal);

bool has_action(int signal, void (*action)(int)) noexcept {
  struct sigaction current = {};
  return ::sigaction(signal, nullptr, &current) == 0 && current.sa_handler == action;
}

extern "C" void on_stop_signal(int signal) {
  signal_that_asked = signal;
  for (const int each : stop_signals) {
    if (has_action(each, on_stop_signal)) {
      std::signal(each, SIG_DFL);
    }
  }
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
