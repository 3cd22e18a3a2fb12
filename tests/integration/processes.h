#pragma once

#include <poll.h>
#include <sched.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <filesystem>
#include <set>
#include <string>
#include <vector>

#include "core/files/descriptor.h"
#include "tests/support/processes.h"

namespace shardrun::test {

/// Whether a process ends, or has ended, before so much time has passed; it need not have been waited for.
[[nodiscard]] inline bool ends_within(pid_t process, int milliseconds) {
  const files::FileDescriptor handle(static_cast<int>(syscall(SYS_pidfd_open, process, 0)));
  pollfd ended = {.fd = handle.get(), .events = POLLIN, .revents = 0};
  return !handle.is_open() || poll(&ended, 1, milliseconds) != 0;
}

/// The processes that a process has started once there are that many, or none where it ends before.
[[nodiscard]] inline std::vector<pid_t> await_children(pid_t process, std::size_t count) {
  for (;;) {
    std::vector<pid_t> children = children_of(process);
    if (children.size() >= count) {
      return children;
    }
    if (ends_within(process, 0)) {
      return {};
    }
    sched_yield();
  }
}

[[nodiscard]] inline bool is_gone(pid_t process) { return kill(process, 0) != 0 && errno == ESRCH; }

/// Names under which memory could be left behind.
[[nodiscard]] inline std::set<std::string> shared_memory() {
  std::set<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    names.insert(entry.path().filename().string());
  }
  return names;
}

}  // namespace shardrun::test
