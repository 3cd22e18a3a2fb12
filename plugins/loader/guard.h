#pragma once

#include <sys/types.h>

#include <chrono>
#include <condition_variable>
#include <csignal>
#include <mutex>
#include <optional>
#include <string_view>
#include <thread>

namespace shardrun::plugins {

/// Sets how long a plugin may take to load, open, be configured, and write a plan or graph (SHARDRUN_PLUGIN_TIMEOUT).
void set_call_limit(std::chrono::milliseconds limit) noexcept;
[[nodiscard]] std::chrono::milliseconds call_limit() noexcept;

struct GuardNames;

/// Watches a call of a plugin's code, which could end the process or never return. The process ends unexpectedly by
/// - a fault (SIGSEGV, SIGABRT, ...);
/// - a call of exit, quick_exit or _exit;
/// - exceeding `limit`; time in which the process was stopped does not count.
/// Then one line on standard error names the plugin, the call and the cause, and the exit code is not 0. Guards nest:
/// the line names the innermost guard of the thread that ends the process. If that thread has no guard, the line names
/// an existing guard and says that another thread did it. Child processes of fork may end in any way. end_process() of
/// core/base ends the process without a line.
class CallGuard {
 public:
  /// `plugin`: "strategy 'rows' (/path)"; `call`: "make_plan". Without `limit` the call can take any time.
  CallGuard(std::string_view plugin, std::string_view call,
            std::optional<std::chrono::milliseconds> limit = std::nullopt);
  CallGuard(const CallGuard&) = delete;
  CallGuard& operator=(const CallGuard&) = delete;
  ~CallGuard();

  [[nodiscard]] const GuardNames& names() const noexcept;

 private:
  void end_late(std::chrono::milliseconds limit);

  const GuardNames* names_;
  pid_t process_;
  const CallGuard* outer_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_over_ = false;
  std::thread clock_;
};

}  // namespace shardrun::plugins
