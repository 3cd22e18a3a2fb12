#include <csignal>

#define CATCH_CONFIG_RUNNER
#include "tests/support/catch.h"

int main(int argc, char** argv) {
  // A shell ignores some signals for programs in the background, and processes that tests start would inherit that.
  for (const int signal : {SIGINT, SIGQUIT, SIGHUP, SIGTERM}) {
    std::signal(signal, SIG_DFL);
  }
  return Catch::Session().run(argc, argv);
}
