#pragma once

namespace shardrun {

/// Ends this process at once, as _exit does. Marks the end as intended, so that no plugin whose code is running is
/// blamed. Async-signal-safe; any thread may call it.
[[noreturn]] void end_process(int code) noexcept;

}  // namespace shardrun
