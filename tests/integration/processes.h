#pragma once

#include <sys/types.h>

#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <set>
#include <string>
#include <vector>

namespace shardrun::test {

/// Processes that a process has started.
[[nodiscard]] inline std::vector<pid_t> children_of(pid_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/task/" + std::to_string(process) + "/children");
  std::vector<pid_t> children;
  for (pid_t child = 0; file >> child;) {
    children.push_back(child);
  }
  return children;
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
