#pragma once

#include <array>
#include <cstdint>

#include "core/device/device.h"

namespace shardrun::device {

/// The box of elements that an op copies from its operand's local part to its result's local part, in local indices.
struct Overlap {
  std::uint32_t rank = 0;
  std::array<std::int64_t, max_rank> sizes = {};
  std::array<std::int64_t, max_rank> from_shape = {};
  std::array<std::int64_t, max_rank> from_first = {};
  std::array<std::int64_t, max_rank> to_shape = {};
  std::array<std::int64_t, max_rank> to_first = {};

  [[nodiscard]] std::int64_t elements() const noexcept;
  /// Throws Error{internal} unless every element of the result is copied.
  void require_all() const;
};

/// Index i of dimension `dim` of y is index i + shift of x. The other dimensions are the same in both.
[[nodiscard]] Overlap shifted_overlap(const TensorView& x, const TensorView& y, std::uint32_t dim, std::int64_t shift);

/// y has the elements of x in the same order, with other dimensions. Each group of dimensions of x that becomes a group
/// of dimensions of y is one dimension of the overlap.
[[nodiscard]] Overlap reshaped_overlap(const TensorView& x, const TensorView& y);

}  // namespace shardrun::device
