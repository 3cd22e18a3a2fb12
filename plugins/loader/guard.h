#pragma once

#include <chrono>
#include <condition_variable>
#include <csignal>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

namespace shardrun::plugins {

/// How long a plugin may take to be loaded, to open, and to write a plan: [plugins] timeout. For the whole process.
void set_call_limit(std::chrono::milliseconds limit) noexcept;
[[nodiscard]] std::chrono::milliseconds call_limit() noexcept;

/// While one lives, code of a plugin runs that could end this process or never come back. If the process is ended by a
/// fault (SIGSEGV, SIGABRT, ...), by a call of exit, quick_exit or _exit, or goes past `limit`, one line on standard
/// error names the plugin, the call and the ending, and the exit code is not 0. The time in which the process was
/// stopped is no part of the limit. Calls nest; of two threads' the one is named whose thread fails.
class CallGuard {
 public:
  /// `plugin`: "strategy 'rows' (/path)"; `call`: "make_plan". No limit: the call keeps a deadline of its own.
  CallGuard(std::string_view plugin, std::string_view call,
            std::optional<std::chrono::milliseconds> limit = std::nullopt);
  CallGuard(const CallGuard&) = delete;
  CallGuard& operator=(const CallGuard&) = delete;
  ~CallGuard();

 private:
  void end_late(std::chrono::milliseconds limit);

  std::string plugin_;
  std::string call_;
  const CallGuard* outer_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_over_ = false;
  std::thread clock_;

  friend struct GuardNames;
};

}  // namespace shardrun::plugins
