#pragma once

namespace shardrun {

/// Ends this process at once, as _exit does, by our own decision: a plugin whose code runs on some thread is not to
/// blame. Async-signal-safe; any thread.
[[noreturn]] void end_process(int code) noexcept;

}  // namespace shardrun
