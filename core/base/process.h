#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <thread>

namespace shardrun {

/// This machine's name, for messages to people.
[[nodiscard]] std::string host_name();

/// Ends this process at once, as _exit does, but by a direct system call. A guard that watches plugins for _exit then
/// does not blame the plugin whose code is running. Async-signal-safe; any thread may call it.
[[noreturn]] void end_process(int code) noexcept;

/// Starts a thread with all signals blocked, so that other threads handle them. `except`: a signal that stays
/// unblocked; 0: none. `what` names the thread in the message. Throws Error{io} if the thread cannot be started.
[[nodiscard]] std::thread thread_without_signals(std::string_view what, std::function<void()> run, int except = 0);

}  // namespace shardrun
