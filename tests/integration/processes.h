#pragma once

#include <poll.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <future>
#include <iterator>
#include <set>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "core/files/descriptor.h"
#include "tests/support/attacks.h"
#include "tests/support/processes.h"

namespace shardrun::test {

/// Whether a process ends within this time, or has ended. It may still have to be reaped.
[[nodiscard]] inline bool ends_within(pid_t process, int milliseconds) {
  const files::FileDescriptor handle(static_cast<int>(syscall(SYS_pidfd_open, process, 0)));
  pollfd ended = {.fd = handle.get(), .events = POLLIN, .revents = 0};
  return !handle.is_open() || poll(&ended, 1, milliseconds) != 0;
}

/// Calls `act` on another thread than the one that reads what the program writes. If `act` throws, the program is
/// killed, because it might never end, and nobody would see the exception.
template <class Act>
[[nodiscard]] auto beside(pid_t program, Act act) {
  return std::async(std::launch::async, [program, act = std::move(act)] {
    try {
      return act();
    } catch (...) {
      kill(program, SIGKILL);
      throw;
    }
  });
}

/// Waits until a process has started `count` processes, and returns them. Returns none if it ends before.
[[nodiscard]] inline std::vector<pid_t> await_children(pid_t process, std::size_t count) {
  for (;;) {
    std::vector<pid_t> children = children_of(process);
    if (children.size() >= count) {
      return children;
    }
    if (ends_within(process, 1)) {
      return {};
    }
  }
}

/// All descendants of a process at this moment.
[[nodiscard]] inline std::vector<pid_t> descendants_of(pid_t process) {
  std::vector<pid_t> all = children_of(process);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const std::vector<pid_t> more = children_of(all[i]);
    all.insert(all.end(), more.begin(), more.end());
  }
  return all;
}

[[nodiscard]] inline bool is_gone(pid_t process) { return kill(process, 0) != 0 && errno == ESRCH; }

/// The ranks of a job that writes below `folder`: their command names it.
[[nodiscard]] inline std::vector<pid_t> ranks_below(const std::filesystem::path& folder) {
  const std::string named = std::filesystem::canonical(folder).string() + "/";
  std::vector<pid_t> found;
  for (const auto& entry : std::filesystem::directory_iterator("/proc")) {
    const std::string name = entry.path().filename().string();
    if (name.find_first_not_of("0123456789") == std::string::npos) {
      std::ifstream command(entry.path() / "cmdline");
      std::string words;
      std::getline(command, words);  // unlike an iterator, it does not throw if the process ends meanwhile
      if (words.find(named) != std::string::npos) {
        found.push_back(std::stoi(name));
      }
    }
  }
  return found;
}

/// Files in /dev/shm that processes have mapped or open: what they could leave behind.
[[nodiscard]] inline std::set<std::string> shared_memory_of(const std::vector<pid_t>& processes) {
  std::set<std::string> names;
  const auto note = [&](const std::string& text) {
    if (const std::size_t at = text.find("/dev/shm/"); at != std::string::npos) {
      names.insert(text.substr(at));
    }
  };
  for (const pid_t process : processes) {
    const std::string folder = "/proc/" + std::to_string(process);
    std::ifstream maps(folder + "/maps");
    for (std::string line; std::getline(maps, line);) {
      note(line);
    }
    std::error_code none;
    for (const auto& entry : std::filesystem::directory_iterator(folder + "/fd", none)) {
      note(std::filesystem::read_symlink(entry.path(), none).string());
    }
  }
  return names;
}

/// Those of these files that still exist, and all other files with this project's name.
[[nodiscard]] inline std::set<std::string> left_of(const std::set<std::string>& shared_memory) {
  std::set<std::string> left;
  for (const std::string& name : shared_memory) {
    if (std::filesystem::exists(name)) {
      left.insert(name);
    }
  }
  for (const auto& entry : std::filesystem::directory_iterator("/dev/shm")) {
    if (entry.path().filename().string().find("shardrun") != std::string::npos) {
      left.insert(entry.path().string());
    }
  }
  return left;
}

}  // namespace shardrun::test
