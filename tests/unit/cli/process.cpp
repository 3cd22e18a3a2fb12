#include "core/cli/process.h"

#include <pthread.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <functional>
#include <stdexcept>
#include <thread>

#include "tests/support/catch.h"

using namespace shardrun;

namespace {

/// Runs `act` in a separate process that catches signals to stop. Returns its exit code, or minus the signal that
/// ended it.
int outcome(const std::function<int()>& act) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);
    cli::catch_stop_signals();
    ::_exit(act());
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return WIFSIGNALED(status) ? -WTERMSIG(status) : WEXITSTATUS(status);
}

/// Lets this thread take signals, so that a signal has been handled when raise() returns.
void take_signals_here() {
  sigset_t none;
  sigemptyset(&none);
  ::pthread_sigmask(SIG_SETMASK, &none, nullptr);
}

}  // namespace

TEST_CASE("repeated signals at once ask to stop once, and ignored signals never do", "[cli]") {
  void (*const before)(int) = std::signal(SIGHUP, SIG_IGN);
  CHECK(outcome([] {
          take_signals_here();
          std::raise(SIGHUP);
          return cli::stop_signal();
        }) == 0);
  std::signal(SIGHUP, before);
  CHECK(outcome([] {
          take_signals_here();
          std::raise(SIGTERM);
          std::raise(SIGTERM);
          return cli::stop_signal();
        }) == SIGTERM);
}

TEST_CASE("a second signal ends the process if it is another signal or comes later", "[cli]") {
  CHECK(outcome([] {
          take_signals_here();
          std::raise(SIGTERM);
          std::raise(SIGINT);
          return 0;
        }) == -SIGINT);
  CHECK(outcome([] {
          take_signals_here();
          std::raise(SIGINT);
          std::this_thread::sleep_for(std::chrono::milliseconds(300));  // the next signal must come later
          std::raise(SIGINT);
          return 0;
        }) == -SIGINT);
}

TEST_CASE("a closed screen asks to stop, and a signal after it counts as the first", "[cli]") {
  CHECK(outcome([] {
          std::raise(SIGPIPE);
          return cli::stop_signal();
        }) == SIGPIPE);
  CHECK(outcome([] {
          take_signals_here();
          std::raise(SIGPIPE);
          std::raise(SIGINT);
          return cli::stop_signal();
        }) == SIGINT);
}

TEST_CASE("a listener hears of the first signal at once, while all other threads are busy", "[cli]") {
  CHECK(outcome([] {
          std::atomic<int> heard = 0;
          std::atomic<int> calls = 0;
          cli::listen_for_stop([&](int signal) {
            ++calls;
            heard = signal;
          });
          ::kill(::getpid(), SIGTERM);
          while (heard == 0) {
            std::this_thread::yield();
          }
          cli::listen_for_stop({});
          return heard == SIGTERM && calls == 1 ? 7 : 8;
        }) == 7);
}

TEST_CASE("a listener added after the first signal hears of it at once, and later listeners do not", "[cli]") {
  CHECK(outcome([] {
          take_signals_here();
          std::raise(SIGTERM);
          int heard = 0;
          int later = 0;
          cli::listen_for_stop({});
          cli::listen_for_stop([&](int signal) { heard = signal; });
          cli::listen_for_stop([&](int signal) { later = signal; });
          cli::listen_for_stop({});
          return heard == SIGTERM && later == 0 ? 7 : 8;
        }) == 7);
  CHECK(outcome([] {
          ::kill(::getpid(), SIGTERM);
          while (cli::stop_signal() == 0) {
            std::this_thread::yield();
          }
          std::atomic<int> heard = 0;
          cli::listen_for_stop([&](int signal) { heard = signal; });
          while (heard == 0) {
            std::this_thread::yield();
          }
          return heard == SIGTERM ? 7 : 8;
        }) == 7);
}

TEST_CASE("a listener that throws does not end the process", "[cli]") {
  CHECK(outcome([] {
          std::atomic<bool> is_told = false;
          cli::listen_for_stop([&](int) {
            is_told = true;
            throw std::runtime_error("no screen");
          });
          ::kill(::getpid(), SIGTERM);
          while (!is_told) {
            std::this_thread::yield();
          }
          cli::listen_for_stop({});
          return cli::stop_signal();
        }) == SIGTERM);
}

TEST_CASE("a slow listener does not delay a second signal", "[cli]") {
  CHECK(outcome([] {
          std::atomic<bool> is_told = false;
          cli::listen_for_stop([&](int) {
            is_told = true;
            for (;;) {
              ::pause();
            }
          });
          ::kill(::getpid(), SIGTERM);
          while (!is_told) {
            std::this_thread::yield();
          }
          ::kill(::getpid(), SIGINT);
          for (;;) {
            ::pause();
          }
          return 0;
        }) == -SIGINT);
}

TEST_CASE("a signal to the process is taken by no thread that computes", "[cli]") {
  CHECK(outcome([] {
          ::kill(::getpid(), SIGTERM);
          while (cli::stop_signal() == 0) {
            std::this_thread::yield();
          }
          sigset_t mask;
          ::pthread_sigmask(SIG_SETMASK, nullptr, &mask);
          return sigismember(&mask, SIGINT) + sigismember(&mask, SIGTERM) + sigismember(&mask, SIGHUP);
        }) == 3);
}
