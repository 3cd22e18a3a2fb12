#include "core/cli/process.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "core/base/stop.h"
#include "core/launch/signals.h"

namespace shardrun::cli {
namespace {

using launch::stop_signals;

/// The first stop signal (lowest byte), and when it came, in milliseconds (the other bytes); 0 if none has come.
std::atomic<std::int64_t> first_request = 0;
static_assert(std::atomic<std::int64_t>::is_always_lock_free);
std::atomic<bool> is_pipe_broken = false;

int signal_of(std::int64_t request) noexcept { return static_cast<int>(request & 0xff); }

bool is_ignored(int signal) noexcept {
  struct sigaction current = {};
  return ::sigaction(signal, nullptr, &current) == 0 && current.sa_handler == SIG_IGN;
}

void set_action(int signal, void (*action)(int)) noexcept {
  struct sigaction wanted = {};
  wanted.sa_handler = action;
  wanted.sa_flags = SA_RESTART;
  sigemptyset(&wanted.sa_mask);
  ::sigaction(signal, &wanted, nullptr);
}

/// Writes the message about a second signal, unless that would block because nobody reads.
void say_ended_by(int signal) noexcept {
  std::array<char, 128> line{};
  // On a terminal, the cursor stands at the end of the progress line.
  const int length =
      std::snprintf(line.data(), line.size(), "%sshardrun: ended at once by a second signal (SIG%s): %s\n",
                    ::isatty(STDERR_FILENO) == 1 ? "\n" : "", sigabbrev_np(signal), text_of(results()));
  pollfd reader = {.fd = STDERR_FILENO, .events = POLLOUT, .revents = 0};
  if (::poll(&reader, 1, 0) == 1) {
    [[maybe_unused]] const ssize_t written = ::write(STDERR_FILENO, line.data(), static_cast<std::size_t>(length));
  }
}

extern "C" void on_stop_signal(int signal) {
  const int error_number = errno;
  timespec time{};
  clock_gettime(CLOCK_MONOTONIC, &time);
  const std::int64_t now = time.tv_sec * std::int64_t{1000} + time.tv_nsec / 1'000'000;
  request_stop(signal);
  std::int64_t first = 0;
  if (!first_request.compare_exchange_strong(first, now << 8 | signal) &&
      (signal != signal_of(first) || now - (first >> 8) > launch::same_request.count())) {
    set_action(signal, SIG_DFL);
    say_ended_by(signal);
    ::raise(signal);
  }
  errno = error_number;
}

/// Called when the reader of the output has gone. Ignores the signal from now on, because every write would raise it.
extern "C" void on_broken_pipe(int signal) {
  is_pipe_broken = true;
  request_stop(signal);
  std::signal(signal, SIG_IGN);
}

/// The listener for the first request. It is never destroyed, because the thread that takes signals can outlive main().
struct Listener {
  std::mutex mutex;
  std::function<void(int)> call;
  bool was_told = false;
};

Listener& listener() {
  static Listener& one = *new Listener;
  return one;
}

/// Calls the listener if a stop signal has come. REQUIRES: the listener's mutex is held.
void tell_if_asked(Listener& who) noexcept {
  const int signal = signal_of(first_request);
  if (signal == 0 || !who.call || std::exchange(who.was_told, true)) {
    return;
  }
  try {
    who.call(signal);
  } catch (const std::exception&) {
    // The process stops anyway.
  }
}

void tell_listener() {
  Listener& who = listener();
  const std::lock_guard lock(who.mutex);
  tell_if_asked(who);
}

/// Starts the thread that takes the signals. Computing threads must not take them, because generated machine code
/// stores numbers below its stack pointer, where Linux would put a handler's frame.
void start_taking(const sigset_t& signals) {
  sigset_t all;
  sigset_t mask;
  sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &mask);
  try {
    std::thread([signals, all] {
      sigset_t waiting = all;
      for (const int each : stop_signals) {
        if (sigismember(&signals, each) == 1) {
          sigdelset(&waiting, each);
        }
      }
      ::sigsuspend(&waiting);
      // Unblocks the signals before the listener is called, because a second signal must not wait for a slow listener.
      ::pthread_sigmask(SIG_SETMASK, &waiting, nullptr);
      tell_listener();
      for (;;) {
        ::pause();
      }
    }).detach();
    for (const int each : stop_signals) {
      if (sigismember(&signals, each) == 1) {
        sigaddset(&mask, each);
      }
    }
  } catch (const std::system_error&) {
    // If no thread can be started, this thread takes the signals.
  }
  ::pthread_sigmask(SIG_SETMASK, &mask, nullptr);
}

}  // namespace

void secure_process() {
  for (const int stream : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(stream, F_GETFD) == -1 && errno == EBADF && ::open("/dev/null", O_RDWR) != stream) {
      std::abort();  // /dev/null cannot be opened in its place, and a message can have nowhere to go
    }
  }
  std::signal(SIGXFSZ, SIG_IGN);
}

void catch_stop_signals() {
  sigset_t caught;
  sigemptyset(&caught);
  for (const int each : stop_signals) {
    if (!is_ignored(each)) {
      set_action(each, on_stop_signal);
      sigaddset(&caught, each);
    }
  }
  if (!is_ignored(SIGPIPE)) {
    std::signal(SIGPIPE, on_broken_pipe);
  }
  start_taking(caught);
}

void ignore_stop_signals() noexcept {
  for (const int each : stop_signals) {
    set_action(each, SIG_IGN);
  }
}

void listen_for_stop(std::function<void(int signal)> listener_of_first) {
  Listener& who = listener();
  const std::lock_guard lock(who.mutex);
  who.call = std::move(listener_of_first);
  tell_if_asked(who);
}

int stop_signal() noexcept {
  const int asked = signal_of(first_request);
  return asked == 0 && is_pipe_broken ? SIGPIPE : asked;
}

}  // namespace shardrun::cli
