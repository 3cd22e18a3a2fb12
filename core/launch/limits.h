#pragma once

#include <cstdint>

namespace shardrun::launch {

/// Descriptors that this process needs for each rank that it launches: two pipes and a connection.
inline constexpr std::uint64_t descriptors_per_rank = 3;

/// Those that it needs besides: while it starts a rank, for strangers, and for whatever the program itself has open.
inline constexpr std::uint64_t other_descriptors = 128;

/// Raises this process's limit of open files to `needed`, where it is lower and may be raised. Returns 0, or what it is
/// where that is too low.
[[nodiscard]] std::uint64_t raise_descriptor_limit(std::uint64_t needed);

}  // namespace shardrun::launch
