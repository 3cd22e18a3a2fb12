#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "core/device/cpu/product.h"
#include "core/device/taps.h"

namespace shardrun::device::cpu {

/// Rows [begin, end) of the positions at which a kernel is laid.
struct RowRange {
  std::int64_t begin;
  std::int64_t end;
};

/// The elements of planes [channels, H, W] that a kernel reads, as a matrix (im2col): a row for each channel and tap, a
/// column for each position. A tap outside the plane is 0.
class Columns {
 public:
  Columns(std::array<Taps, 2> taps, std::size_t element_bytes) : taps_(taps), bytes_(element_bytes) {}

  /// Writes the matrix of some channels and rows of positions, without gaps. `planes`: the first of these channels.
  void write(const std::byte* planes, std::int64_t channels, RowRange rows, std::byte* matrix) const;

 private:
  template <typename Element>
  void write_as(const Element* planes, std::int64_t channels, RowRange rows, Element* matrix) const;
  template <typename Element>
  void write_line(const Element* line, std::int64_t tap, Element* to) const;

  std::array<Taps, 2> taps_;
  std::size_t bytes_;
};

}  // namespace shardrun::device::cpu
