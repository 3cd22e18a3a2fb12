#include "core/base/signal_free_thread.h"

#include <fmt/format.h>
#include <pthread.h>

#include <csignal>
#include <system_error>
#include <utility>

#include "core/base/error.h"

namespace shardrun {

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
