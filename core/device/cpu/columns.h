#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "core/device/cpu/product.h"
#include "core/device/taps.h"

namespace shardrun::device::cpu {

/// Rows [begin, end) of the positions of a convolution's kernel.
struct RowRange {
  std::int64_t begin;
  std::int64_t end;
};

/// The elements of planes [channels, H, W] that a convolution's kernel reads, as a matrix (im2col). It has a row for
/// each channel and tap, and a column for each position of the kernel. Taps outside the plane are 0.
class Columns {
 public:
  Columns(std::array<Taps, 2> taps, std::size_t element_bytes) : taps_(taps), bytes_(element_bytes) {}

  /// Writes the part of the matrix for `channels` channels and some rows of positions, without gaps. `planes` points to
  /// the first of these channels.
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
