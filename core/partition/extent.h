#pragma once

#include <compare>
#include <cstdint>

#include "core/partition/program.h"

namespace shardrun::partition {

/// A range of bytes in the arena.
struct Extent {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;

  auto operator<=>(const Extent&) const = default;
  [[nodiscard]] bool exists() const noexcept { return begin < end; }
  [[nodiscard]] bool overlaps(const Extent& other) const noexcept { return begin < other.end && other.begin < end; }
  [[nodiscard]] bool contains(const Extent& other) const noexcept { return begin <= other.begin && other.end <= end; }
};

[[nodiscard]] inline Extent extent_of(const Buffer& buffer) { return {buffer.offset, buffer.offset + buffer.bytes}; }

[[nodiscard]] inline Extent extent_of(const Program& program, const Region& region, graph::DType dtype) {
  if (!region.buffer.exists()) {
    return {};
  }
  const std::uint64_t bytes = graph::element_bytes(dtype);
  const std::uint64_t begin = program.buffers[region.buffer].offset + static_cast<std::uint64_t>(region.first) * bytes;
  return {begin, begin + static_cast<std::uint64_t>(region.elements) * bytes};
}

}  // namespace shardrun::partition
