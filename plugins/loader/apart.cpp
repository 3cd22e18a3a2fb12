#include "plugins/loader/apart.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>
#include <exception>
#include <string>

#include "core/base/error.h"
#include "core/files/descriptor.h"
#include "core/base/printable.h"

namespace shardrun::plugins {
namespace {

// How the process ends what it writes where it was not ended before.
constexpr std::string_view went_well = "\nshardrun: it went well\n";
constexpr std::string_view threw = "\nshardrun: it threw: ";

/// What the process wrote last to its standard error.
std::string last_words(int file) {
  std::array<char, 4096> bytes{};
  const off_t size = ::lseek(file, 0, SEEK_END);
  const off_t from = std::max<off_t>(0, size - static_cast<off_t>(bytes.size()));
  const ssize_t count = ::pread(file, bytes.data(), bytes.size(), from);
  return {bytes.data(), static_cast<std::size_t>(std::max<ssize_t>(count, 0))};
}

std::string last_line(std::string text) {
  while (text.ends_with('\n')) {
    text.pop_back();
  }
  return text.substr(text.rfind('\n') + 1);
}

void write_words(int file, std::string_view first, std::string_view second) {
  const std::string text = fmt::format("{}{}", first, second);
  [[maybe_unused]] const ssize_t written = ::write(file, text.data(), text.size());
}

[[noreturn]] void run_apart(pid_t parent, int words, const std::function<void()>& act) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  ::setpgid(0, 0);
  const int nothing = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  ::dup2(nothing, STDIN_FILENO);
  ::dup2(nothing, STDOUT_FILENO);
  ::dup2(words, STDERR_FILENO);
  if (::getppid() == parent) {
    try {
      act();
      write_words(words, went_well, "");
    } catch (const std::exception& error) {
      write_words(words, threw, printable(error.what()));
    } catch (...) {
      write_words(words, threw, "something that is no exception");
    }
  }
  if (::getpgrp() == ::getpid()) {
    ::kill(0, SIGKILL);  // with all that the plugin started
  }
  ::_exit(1);
}

/// False where it did not end in time.
bool await_end(pid_t process, std::chrono::milliseconds limit) {
  const files::FileDescriptor watched(static_cast<int>(::syscall(SYS_pidfd_open, process, 0)));
  if (!watched.is_open()) {  // an old kernel: the process keeps the limit itself
    siginfo_t ended{};
    while (::waitid(P_PID, static_cast<id_t>(process), &ended, WEXITED | WNOWAIT) < 0 && errno == EINTR) {
    }
    return true;
  }
  pollfd ending = {.fd = watched.get(), .events = POLLIN, .revents = 0};
  int ready = 0;
  do {
    ready = ::poll(&ending, 1, static_cast<int>(limit.count()));
  } while (ready < 0 && errno == EINTR);
  return ready != 0;
}

}  // namespace

void try_apart(std::string_view plugin, std::chrono::milliseconds limit, const std::function<void()>& act) {
  const files::FileDescriptor words(::memfd_create("shardrun plugin", MFD_CLOEXEC));
  if (!words.is_open()) {
    throw files::system_error("make", "a file for the words of a plugin", errno);
  }
  std::fflush(nullptr);  // what is buffered is written by this process alone
  const pid_t parent = ::getpid();
  const pid_t process = ::fork();
  if (process < 0) {
    throw files::system_error("start", "a process to try a plugin in", errno);
  }
  if (process == 0) {
    run_apart(parent, words.get(), act);
  }
  ::setpgid(process, process);
  constexpr std::chrono::seconds to_say_so{2};  // it ends itself at the limit, and says where it was
  const bool has_ended = await_end(process, limit + to_say_so);
  ::kill(-process, SIGKILL);
  int status = 0;
  while (::waitpid(process, &status, 0) < 0 && errno == EINTR) {
  }
  const std::string text = last_words(words.get());
  if (text.ends_with(went_well)) {
    return;
  }
  if (const std::size_t at = text.rfind(threw); at != std::string::npos) {
    throw Error(ErrorCode::plugin, text.substr(at + threw.size()));
  }
  constexpr std::string_view own = "shardrun: ";
  if (const std::string line = last_line(text); line.starts_with(own)) {
    throw Error(ErrorCode::plugin, printable(line.substr(own.size())));
  }
  throw Error(ErrorCode::plugin,
              fmt::format("{}: the process that it was tried in {}", plugin,
                          !has_ended            ? fmt::format("did not come back within {} ms", limit.count())
                          : WIFSIGNALED(status) ? fmt::format("was ended by signal {}", WTERMSIG(status))
                                                : fmt::format("exited with code {}", WEXITSTATUS(status))));
}

}  // namespace shardrun::plugins
