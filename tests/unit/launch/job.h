#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/launch/launch.h"

namespace shardrun::test {

/// A job whose ranks do what rank_program.cpp calls `what`, and everything that it tells.
struct LaunchJob {
  struct Text {
    int rank;
    std::string text;
    friend bool operator==(const Text&, const Text&) = default;
  };

  launch::LaunchSettings settings;
  std::vector<pid_t> pids;
  std::vector<Text> output;
  std::vector<Text> errors;
  std::vector<Text> messages;  ///< "KIND: BYTES"
  std::vector<std::string> logs;
  std::vector<std::string> notices;
  std::vector<void (*)(int)> actions_before;
  int descriptors_before;

  LaunchJob(int ranks, std::vector<std::string> what);
  LaunchJob(const LaunchJob&) = delete;
  LaunchJob& operator=(const LaunchJob&) = delete;

  /// Called after each line of a rank's standard output has been noted.
  std::function<void(const Text& line)> then;
  std::function<void(const std::string& notice)> then_notice;

  /// Calls launch(). Fails the test if a process, a descriptor or a signal action of the job is left.
  launch::LaunchResult run();
  void check_nothing_left() const;

  [[nodiscard]] bool all_said(const std::string& line) const;
  [[nodiscard]] std::vector<std::string> lines_of(int rank) const;
  [[nodiscard]] bool logged(const std::string& part) const;
};

/// The root cause as text, "[rank] text [code or signal]"; "none" if there is none.
[[nodiscard]] std::string cause_of(const launch::LaunchResult& result);

[[nodiscard]] int open_descriptors();

/// Sends SIGSTOP. Returns once the process has stopped.
void stop_process(pid_t pid);

}  // namespace shardrun::test
