#pragma once

#include <cstdint>

namespace shardrun::plugins {

/// The present time, in the kernel's unit for the start of processes.
[[nodiscard]] std::uint64_t process_clock() noexcept;

/// Kills the children of this process that were started at that time or later, and their descendants. Descendants whose
/// parent has ended belong to another process and are not found. Async-signal-safe.
void kill_children_since(std::uint64_t time) noexcept;

}  // namespace shardrun::plugins
