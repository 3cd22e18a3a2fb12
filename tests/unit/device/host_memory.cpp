#include "core/device/host_memory.h"

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>

#include "core/memory/layout.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"

using namespace shardrun;
using device::HostMemory;
using memory::page_bytes;

namespace {

/// The signal that ends a child process that writes one byte at `address`; 0 if the write is allowed.
int signal_of_write(std::byte* address) {
  const pid_t child = fork();
  if (child == 0) {
    // Without the handlers of a sanitizer or of the test framework.
    std::signal(SIGSEGV, SIG_DFL);
    std::signal(SIGBUS, SIG_DFL);
    const rlimit no_core{0, 0};
    setrlimit(RLIMIT_CORE, &no_core);
    *static_cast<volatile std::byte*>(address) = std::byte{1};
    _exit(0);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

}  // namespace

TEST_CASE("an arena begins as zeros and at a page", "[device]") {
  const HostMemory arena(3 * page_bytes + 5);
  CHECK(arena.bytes() == 3 * page_bytes + 5);
  CHECK(reinterpret_cast<std::uintptr_t>(arena.data()) % page_bytes == 0);
  CHECK(std::all_of(arena.data(), arena.data() + arena.bytes(), [](std::byte byte) { return byte == std::byte{0}; }));
}

TEST_CASE("writing before or behind an arena ends the process", "[device]") {
  const HostMemory arena(2 * page_bytes);
  CHECK(signal_of_write(arena.data()) == 0);
  CHECK(signal_of_write(arena.data() + 2 * page_bytes - 1) == 0);
  CHECK(signal_of_write(arena.data() - 1) == SIGSEGV);
  CHECK(signal_of_write(arena.data() + 2 * page_bytes) == SIGSEGV);
}

TEST_CASE("the guard page follows the last page of an arena that does not fill it", "[device]") {
  const HostMemory arena(page_bytes + 1);
  CHECK(signal_of_write(arena.data() + page_bytes) == 0);
  CHECK(signal_of_write(arena.data() + 2 * page_bytes) == SIGSEGV);
}

TEST_CASE("an arena counts the pages that were written, each once", "[device]") {
  const HostMemory arena(100 * page_bytes);
  CHECK(arena.touched_bytes() == 0);
  arena.data()[0] = std::byte{1};
  CHECK(arena.touched_bytes() == page_bytes);
  arena.data()[page_bytes - 1] = std::byte{1};
  CHECK(arena.touched_bytes() == page_bytes);
  arena.data()[page_bytes] = std::byte{1};
  arena.data()[99 * page_bytes + 7] = std::byte{0};
  CHECK(arena.touched_bytes() == 3 * page_bytes);
}

TEST_CASE("an arena may be empty", "[device]") {
  const HostMemory arena(0);
  CHECK(arena.bytes() == 0);
  CHECK(arena.touched_bytes() == 0);
}

TEST_CASE("an arena that the system cannot give is refused", "[device]") {
  const std::string message = test::error_of([] { const HostMemory arena(std::uint64_t{1} << 62U); });
  CHECK(message.find("1: arena of 4611686018427387904 bytes: ") == 0);
  CHECK(message.find("; make the model, batch or context smaller, or free memory") != std::string::npos);
}
