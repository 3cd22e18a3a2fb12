#pragma once

#include <cstdint>

namespace shardrun::launch {

/// File descriptors that this process needs for each rank that it launches: two pipes and a connection.
inline constexpr std::uint64_t descriptors_per_rank = 3;

/// File descriptors that this process needs in addition: for starting a rank, for strangers' connections, and for files
/// that the program itself has open.
inline constexpr std::uint64_t other_descriptors = 128;

/// Raises this process's limit of open files to `needed` if it is lower. Returns 0 if the limit is now high enough,
/// otherwise the present limit.
[[nodiscard]] std::uint64_t raise_descriptor_limit(std::uint64_t needed);

}  // namespace shardrun::launch
