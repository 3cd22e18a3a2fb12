#pragma once

#include <cstdint>

namespace shardrun::plugins {

/// The present time as the kernel counts it for the start of processes.
[[nodiscard]] std::uint64_t process_clock() noexcept;

/// Kills the children of this process that were started at that time or later, and all below them. Those whose parent
/// has ended already belong to another process and are not found. Async-signal-safe.
void kill_children_since(std::uint64_t time) noexcept;

}  // namespace shardrun::plugins
