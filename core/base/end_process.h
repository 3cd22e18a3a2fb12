#pragma once

namespace shardrun {

/// Ends this process at once, as _exit does. It marks the end as ours, so that no plugin whose code is running is
/// blamed. Async-signal-safe; any thread.
[[noreturn]] void end_process(int code) noexcept;

}  // namespace shardrun
