#include "core/cli/process.h"

#include <csignal>

#include "tests/support/catch.h"

using namespace shardrun;

namespace {

auto action_of(int signal) {
  struct sigaction action = {};
  ::sigaction(signal, nullptr, &action);
  return action.sa_handler;
}

}  // namespace

TEST_CASE("the first signal to stop gives back those that were caught, and none that was ignored", "[cli]") {
  void (*const before)(int) = std::signal(SIGHUP, SIG_IGN);
  cli::catch_stop_signals();
  CHECK(cli::stop_signal() == 0);

  std::raise(SIGHUP);
  CHECK(cli::stop_signal() == 0);
  std::raise(SIGTERM);

  CHECK(cli::stop_signal() == SIGTERM);
  CHECK(action_of(SIGINT) == SIG_DFL);
  CHECK(action_of(SIGTERM) == SIG_DFL);
  CHECK(action_of(SIGHUP) == SIG_IGN);
  std::signal(SIGHUP, before);
}
