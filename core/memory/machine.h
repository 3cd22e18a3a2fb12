#pragma once

#include <cstdint>

namespace shardrun::memory {

/// Bytes that this machine could still give to a process: what the kernel says is available, or what the control group
/// leaves if that is less. 0 where neither can be read.
[[nodiscard]] std::uint64_t available_bytes();

}  // namespace shardrun::memory
