#include "core/launch/signals.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <system_error>

#include "core/base/error.h"
#include "core/launch/status.h"

namespace shardrun::launch {
namespace {

/// The write end of the one SignalPipe, or -1.
std::atomic<int> target = -1;
static_assert(std::atomic<int>::is_always_lock_free);

extern "C" void pass_on(int signal) {
  const int error_number = errno;
  const auto byte = static_cast<unsigned char>(signal);
  [[maybe_unused]] const ssize_t written = ::write(target.load(std::memory_order_relaxed), &byte, 1);
  errno = error_number;
}

}  // namespace

std::string stop_notice(int signal, std::string_view how) {
  return signal == SIGINT ? fmt::format("{} (Ctrl-C again ends it now)", how)
                          : fmt::format("asked to stop by {}: {} (once more ends it now)", signal_text(signal), how);
}

SignalPipe::SignalPipe() {
  std::array<int, 2> ends = {};
  if (::pipe2(ends.data(), O_CLOEXEC | O_NONBLOCK) != 0) {
    throw files::system_error("open", "the pipe of signals", errno);
  }
  read_end_ = files::FileDescriptor(ends[0]);
  write_end_ = files::FileDescriptor(ends[1]);
  int none = -1;
  if (!target.compare_exchange_strong(none, write_end_.get())) {
    throw Error(ErrorCode::internal, "two jobs cannot be launched by one process at the same time");
  }
  struct sigaction action = {};
  action.sa_handler = pass_on;
  action.sa_flags = SA_RESTART | SA_NOCLDSTOP;
  sigemptyset(&action.sa_mask);
  sigset_t unblocked;
  sigemptyset(&unblocked);
  for (std::size_t i = 0; i < caught.size(); ++i) {
    ::sigaction(caught[i], &action, &before_[i]);
    if (before_[i].sa_handler == SIG_IGN && caught[i] != SIGCHLD) {
      ::sigaction(caught[i], &before_[i], nullptr);
    }
    sigaddset(&unblocked, caught[i]);
  }
  ::pthread_sigmask(SIG_UNBLOCK, &unblocked, &mask_before_);
}

SignalPipe::~SignalPipe() {
  ::pthread_sigmask(SIG_SETMASK, &mask_before_, nullptr);
  for (std::size_t i = 0; i < caught.size(); ++i) {
    ::sigaction(caught[i], &before_[i], nullptr);
  }
  target = -1;
}

}  // namespace shardrun::launch
