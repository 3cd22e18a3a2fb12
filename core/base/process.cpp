#include "core/base/process.h"

#include <fmt/format.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <system_error>
#include <utility>

#include "core/base/error.h"

namespace shardrun {

std::string host_name() {
  std::array<char, 256> name = {};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "this machine";
}

void end_process(int code) noexcept {
  for (;;) {
    ::syscall(SYS_exit_group, code);
  }
}

std::thread thread_without_signals(std::string_view what, std::function<void()> run, int except) {
  sigset_t blocked;
  sigset_t before;
  sigfillset(&blocked);
  if (except != 0) {
    sigdelset(&blocked, except);
  }
  ::pthread_sigmask(SIG_SETMASK, &blocked, &before);
  try {
    std::thread thread(std::move(run));
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    return thread;
  } catch (const std::system_error& error) {
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    throw Error(ErrorCode::io, fmt::format("cannot start {}: {}", what, error.what()));
  }
}

}  // namespace shardrun
