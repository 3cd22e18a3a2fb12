#pragma once

#include <functional>
#include <string_view>
#include <thread>

namespace shardrun {

/// Starts a thread with all signals blocked, so that other threads handle them. `except`: a signal that stays
/// unblocked; 0: none. `what` names the thread in the message. Throws Error{io} if the thread cannot be started.
[[nodiscard]] std::thread thread_without_signals(std::string_view what, std::function<void()> run, int except = 0);

}  // namespace shardrun
