#include "core/conformance/process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <utility>

#include "core/base/error.h"

extern char** environ;

namespace shardrun::conformance {

void Process::open_pipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    throw Error(ErrorCode::io, fmt::format("cannot make a pipe: {}", std::strerror(errno)));
  }
  read_end_ = ends[0];
  write_end_ = ends[1];
}

void Process::spawn(std::vector<std::string> words, int inherited) {
  std::vector<char*> arguments;
  for (std::string& word : words) {
    arguments.push_back(word.data());
  }
  arguments.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  // A descriptor that is duplicated onto itself stays open in the new process.
  posix_spawn_file_actions_adddup2(&actions, inherited, inherited);
  posix_spawn_file_actions_adddup2(&actions, write_end_, write_end_);
  // A plugin's output is not the result of the check.
  posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
  const int problem = posix_spawn(&pid_, arguments[0], &actions, nullptr, arguments.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  close(write_end_);
  if (problem != 0) {
    pid_ = -1;
    close(read_end_);
    throw Error(ErrorCode::io, fmt::format("cannot start {}: {}", words[0], std::strerror(problem)));
  }
}

Process::Process(Process&& other) noexcept
    : read_end_(std::exchange(other.read_end_, -1)),
      write_end_(std::exchange(other.write_end_, -1)),
      pid_(std::exchange(other.pid_, -1)),
      partial_(std::move(other.partial_)) {}

Process::~Process() {
  kill();
  if (pid_ > 0) {
    waitpid(pid_, nullptr, 0);
  }
  if (read_end_ >= 0) {
    close(read_end_);
  }
}

void Process::kill() noexcept {
  if (pid_ > 0) {
    ::kill(pid_, SIGKILL);
  }
}

bool Process::read_lines(std::vector<std::string>& lines) {
  char buffer[4096];
  const ssize_t bytes = read(read_end_, buffer, sizeof(buffer));
  if (bytes <= 0) {
    return bytes < 0 && errno == EINTR;
  }
  partial_.append(buffer, static_cast<std::size_t>(bytes));
  for (std::size_t end = partial_.find('\n'); end != std::string::npos; end = partial_.find('\n')) {
    lines.push_back(partial_.substr(0, end));
    partial_.erase(0, end + 1);
  }
  return true;
}

std::optional<std::string> Process::wait() {
  int status = 0;
  while (waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
  }
  pid_ = -1;
  if (WIFSIGNALED(status)) {
    return fmt::format("was ended by signal {} ({})", WTERMSIG(status), strsignal(WTERMSIG(status)));
  }
  return WEXITSTATUS(status) == 0 ? std::nullopt
                                  : std::optional(fmt::format("exited with code {}", WEXITSTATUS(status)));
}

}  // namespace shardrun::conformance
