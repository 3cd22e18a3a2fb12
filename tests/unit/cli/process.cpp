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

TEST_CASE("a signal to stop asks once, however often it comes at once, and none that was ignored does", "[cli]") {
  void (*const before)(int) = std::signal(SIGHUP, SIG_IGN);
  cli::catch_stop_signals();
  CHECK(cli::stop_signal() == 0);

  std::raise(SIGHUP);
  CHECK(cli::stop_signal() == 0);
  std::raise(SIGTERM);
  std::raise(SIGTERM);

  CHECK(cli::stop_signal() == SIGTERM);
  CHECK(action_of(SIGHUP) == SIG_IGN);
  std::signal(SIGHUP, before);
}
