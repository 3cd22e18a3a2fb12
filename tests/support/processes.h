#pragma once

#include <sys/types.h>

#include <fstream>
#include <iterator>
#include <string>
#include <vector>

namespace shardrun::test {

/// The child processes of a process.
[[nodiscard]] inline std::vector<pid_t> children_of(pid_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/task/" + std::to_string(process) + "/children");
  std::vector<pid_t> children;
  for (pid_t child = 0; file >> child;) {
    children.push_back(child);
  }
  return children;
}

/// The state of a process in /proc, such as 'R', 'S', 'T' (stopped) or 'Z'; 0 if there is no such process.
[[nodiscard]] inline char state_of(pid_t process) {
  std::ifstream file("/proc/" + std::to_string(process) + "/stat");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  const std::size_t name_end = text.rfind(')');
  return name_end == std::string::npos || name_end + 2 >= text.size() ? '\0' : text[name_end + 2];
}

}  // namespace shardrun::test
