#include "core/base/standard_error.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstddef>
#include <string>
#include <thread>
#include <vector>

#include "tests/support/catch.h"

using namespace shardrun;

namespace {

/// A pipe that a few thousand bytes fill.
struct Pipe {
  Pipe() {
    REQUIRE(pipe2(ends.data(), O_CLOEXEC) == 0);
    fcntl(ends[1], F_SETPIPE_SZ, 4096);
  }
  Pipe(const Pipe&) = delete;
  Pipe& operator=(const Pipe&) = delete;
  ~Pipe() {
    close(ends[0]);
    close(ends[1]);
  }

  void fill() const {
    const std::string text(static_cast<std::size_t>(fcntl(ends[1], F_GETPIPE_SZ)), '.');
    REQUIRE(write(ends[1], text.data(), text.size()) == static_cast<ssize_t>(text.size()));
  }

  std::string read_bytes(std::size_t bytes) const {
    std::string text;
    while (text.size() < bytes) {
      std::array<char, 512> piece{};
      const ssize_t got = read(ends[0], piece.data(), std::min(piece.size(), bytes - text.size()));
      REQUIRE(got > 0);
      text.append(piece.data(), static_cast<std::size_t>(got));
    }
    return text;
  }

  std::array<int, 2> ends = {};
};

}  // namespace

TEST_CASE("a brief write to a full pipe that nobody reads gives up", "[base]") {
  const Pipe pipe;
  pipe.fill();
  CHECK(write_for_person(pipe.ends[1], "the end\n", Patience::brief) == EAGAIN);
}

TEST_CASE("lines of several writers on one small pipe stay whole", "[base]") {
  const Pipe pipe;
  constexpr int writers = 3;
  constexpr int lines = 50;
  constexpr std::size_t line_bytes = 1000;
  std::array<int, writers> errors = {};
  std::vector<std::thread> threads;
  for (int writer = 0; writer < writers; ++writer) {
    threads.emplace_back([&, writer] {
      std::string text;
      for (int line = 0; line < lines; ++line) {
        text += std::string(line_bytes - 1, static_cast<char>('a' + writer)) + "\n";
      }
      errors[static_cast<std::size_t>(writer)] = write_for_person(pipe.ends[1], text);
    });
  }
  int torn = 0;
  for (int line = 0; line < writers * lines; ++line) {
    const std::string text = pipe.read_bytes(line_bytes);
    torn += text == std::string(line_bytes - 1, text[0]) + "\n" ? 0 : 1;
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  CHECK(torn == 0);
  CHECK(errors == std::array<int, writers>{});
}

TEST_CASE("a line that is longer than a pipe takes at once arrives whole", "[base]") {
  const Pipe pipe;
  const std::string text = std::string(3 * PIPE_BUF, 'x') + "\nthe end\n";
  int error = -1;
  std::thread writer([&] { error = write_for_person(pipe.ends[1], text); });
  CHECK(pipe.read_bytes(text.size()) == text);
  writer.join();
  CHECK(error == 0);
}

TEST_CASE("a stream without a reader is an error and no wait", "[base]") {
  Pipe pipe;
  close(pipe.ends[0]);
  pipe.ends[0] = -1;
  struct sigaction ignored = {};
  struct sigaction before = {};
  ignored.sa_handler = SIG_IGN;
  sigaction(SIGPIPE, &ignored, &before);
  CHECK(write_for_person(pipe.ends[1], "the end\n") == EPIPE);
  sigaction(SIGPIPE, &before, nullptr);
}
