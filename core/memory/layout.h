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

/// A buffer's size and the instructions, first to last inclusive, between which it must keep its contents.
/// 0 <= first <= last.
struct Interval {
  std::uint64_t bytes = 0;
  std::int32_t first = 0;
  std::int32_t last = 0;
};

struct Layout {
  std::vector<std::uint64_t> offsets;  ///< one an interval, each a multiple of `alignment`
  std::uint64_t bytes = 0;
};

/// Offsets such that buffers that live at the same time do not overlap: larger buffers first, each in the tightest gap
/// (Pisarchyk & Lee 2020, arXiv:2001.03288, section 5.2); of several orders the one that needs least is kept. Buffers
/// of no bytes are at 0.
[[nodiscard]] Layout place(std::span<const Interval> intervals);

/// The most bytes that live at once: no layout is smaller. Also the instruction where that is.
[[nodiscard]] std::pair<std::uint64_t, std::int32_t> most_live(std::span<const Interval> intervals);

/// Bytes of all pages that at least one of the (offset, bytes) ranges touches.
[[nodiscard]] std::uint64_t touched_bytes(std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges);

}  // namespace shardrun::memory
