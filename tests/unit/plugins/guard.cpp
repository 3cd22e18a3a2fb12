#include "plugins/loader/guard.h"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <future>
#include <string>
#include <thread>

#include "core/base/process.h"
#include "tests/support/catch.h"

using namespace shardrun;
using namespace shardrun::plugins;
using Catch::Contains;

namespace {

struct Ended {
  int status = -1;
  std::string words;  ///< its standard error
};

/// Runs `act` in a process that is ended after half a minute.
template <class Act>
Ended run_in_process(Act act, bool is_read = true) {
  std::array<int, 2> pipe = {-1, -1};
  REQUIRE(::pipe(pipe.data()) == 0);
  if (!is_read) {
    const int flags = ::fcntl(pipe[1], F_GETFL);
    ::fcntl(pipe[1], F_SETFL, flags | O_NONBLOCK);
    while (::write(pipe[1], "x", 1) == 1) {
    }
    ::fcntl(pipe[1], F_SETFL, flags);
  }
  const pid_t process = ::fork();
  if (process == 0) {
    ::alarm(30);
    ::dup2(pipe[1], STDERR_FILENO);
    act();
    end_process(99);
  }
  ::close(pipe[1]);
  Ended ended;
  std::array<char, 4096> bytes{};
  for (ssize_t got = 1; is_read && got > 0;) {
    got = ::read(pipe[0], bytes.data(), bytes.size());
    ended.words.append(bytes.data(), static_cast<std::size_t>(got > 0 ? got : 0));
  }
  ::waitpid(process, &ended.status, 0);
  ::close(pipe[0]);
  return ended;
}

}  // namespace

TEST_CASE("a child that a plugin forked may exit", "[plugins][guard]") {
  const Ended ended = run_in_process([] {
    const CallGuard guard("plugin 'x'", "open");
    const pid_t child = ::fork();
    if (child == 0) {
      ::_exit(0);
    }
    int status = -1;
    ::waitpid(child, &status, 0);
    end_process(status == 0 ? 0 : 1);
  });
  CHECK(ended.status == 0);
  CHECK(ended.words.empty());
}

TEST_CASE("a child that a plugin forked is ended if it returns from the call", "[plugins][guard]") {
  const Ended ended = run_in_process([] {
    pid_t child = -1;
    {
      const CallGuard guard("plugin 'x'", "open", std::chrono::minutes(1));
      child = ::fork();
    }
    int status = -1;
    ::waitpid(child, &status, 0);
    end_process(WIFEXITED(status) ? WEXITSTATUS(status) : 99);
  });
  CHECK(WIFEXITED(ended.status));
  CHECK(WEXITSTATUS(ended.status) == 2);
  CHECK_THAT(ended.words, Contains("plugin 'x', open: it started a process by fork and let it return"));
}

TEST_CASE("a plugin is not blamed when another thread of the program ends the process", "[plugins][guard]") {
  const Ended ended = run_in_process([] {
    std::promise<void> is_guarded;
    std::thread([&] {
      const CallGuard guard("plugin 'x'", "open");
      is_guarded.set_value();
      for (;;) {
        ::pause();
      }
    }).detach();
    is_guarded.get_future().wait();
    end_process(7);
  });
  CHECK(WIFEXITED(ended.status));
  CHECK(WEXITSTATUS(ended.status) == 7);
  CHECK(ended.words.empty());
}

// Sanitizers replace _exit.
#if !SHARDRUN_TESTS_SANITIZED
TEST_CASE("an exit on a thread without a guard is reported as such", "[plugins][guard]") {
  const Ended ended = run_in_process([] {
    const CallGuard guard("plugin 'x'", "open");
    std::thread([] { ::_exit(0); }).join();
  });
  CHECK(WIFEXITED(ended.status));
  CHECK(WEXITSTATUS(ended.status) == 2);
  CHECK(ended.words ==
        "shardrun: plugin 'x', open: while it ran, another thread called _exit(0), which no plugin may\n");
}

TEST_CASE("a plugin's end is reported without waiting for a reader of standard error", "[plugins][guard]") {
  const Ended ended = run_in_process(
      [] {
        const CallGuard guard("plugin 'x'", "open");
        ::_exit(0);
      },
      false);
  CHECK(WIFEXITED(ended.status));
  CHECK(WEXITSTATUS(ended.status) == 2);
}
#endif
