#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace shardrun::memory {

inline constexpr std::uint64_t alignment = 64;
inline constexpr std::uint64_t page_bytes = 4096;

[[nodiscard]] constexpr std::uint64_t align_up(std::uint64_t bytes, std::uint64_t to = alignment) noexcept {
  return (bytes + to - 1) / to * to;
}

/// A buffer's size, and the first and last instruction at which it must keep its contents: 0 <= first <= last.
struct Interval {
  std::uint64_t bytes = 0;
  std::int32_t first = 0;
  std::int32_t last = 0;
};

struct Layout {
  std::vector<std::uint64_t> offsets;  ///< one per interval, each a multiple of `alignment`
  std::uint64_t bytes = 0;
};

/// Chooses offsets so that buffers which live at the same time do not overlap. Places one buffer after the other in the
/// tightest gap (Pisarchyk & Lee 2020, arXiv:2001.03288, section 5.2). Tries up to three orders (the largest, the
/// longest-lived or the earliest buffers first), and keeps the smallest layout. Empty buffers are at 0.
[[nodiscard]] Layout place(std::span<const Interval> intervals);

/// The most bytes that live at once, aligned, and the first instruction at which they do. No layout can be smaller.
[[nodiscard]] std::pair<std::uint64_t, std::int32_t> most_live(std::span<const Interval> intervals);

/// Bytes of all pages that at least one of the (offset, bytes) ranges touches.
[[nodiscard]] std::uint64_t touched_bytes(std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges);

}  // namespace shardrun::memory
