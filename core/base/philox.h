#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace shardrun {

/// Philox4x32-10, a counter-based random number generator. The block at a counter is a pure function of counter and
/// key, so any element of any tensor can be drawn by itself. Salmon et al. 2011, "Parallel random numbers: as easy as
/// 1, 2, 3", section 3.3.
using PhiloxKey = std::array<std::uint32_t, 2>;
using PhiloxBlock = std::array<std::uint32_t, 4>;

[[nodiscard]] PhiloxBlock philox(PhiloxBlock counter, PhiloxKey key) noexcept;

/// 64-bit FNV-1a of the stable name of a tensor or op. Keys are made from it.
[[nodiscard]] std::uint64_t hash_name(std::string_view name) noexcept;

/// The key of one stream, made from the job's seed and the stable name of the tensor or op that draws. It does not
/// depend on node numbers, ranks or microbatches.
[[nodiscard]] PhiloxKey stream_key(std::uint64_t seed, std::string_view name) noexcept;

/// A uniform number in [0, 1) with 24 bits, which float and double both represent exactly.
[[nodiscard]] constexpr float uniform(std::uint32_t bits) noexcept { return static_cast<float>(bits >> 8U) * 0x1p-24F; }

}  // namespace shardrun
