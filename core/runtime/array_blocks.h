#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/graph/tensor_type.h"

namespace shardrun::runtime {

/// A dimension of an array, with the number of elements outside and inside of it.
struct ArrayAxis {
  ArrayAxis(const std::vector<std::int64_t>& shape, std::uint32_t axis);

  /// Elements of a block that has `extent` indices along the axis.
  [[nodiscard]] std::uint64_t block(std::int64_t extent) const noexcept {
    return static_cast<std::uint64_t>(outer * extent * inner);
  }

  std::int64_t outer = 1;
  std::int64_t inner = 1;  ///< elements per index of the axis
};

/// The sizes of the parts into which `extent` indices are cut. They differ by at most one; larger parts come first.
[[nodiscard]] std::vector<std::int64_t> parts_of(std::int64_t extent, std::uint32_t parts);

/// The blocks of an array along an axis, one after the other in memory, in the order of the ranks. If they are already
/// laid out so in the array, this is the array's own memory.
class ArrayBlocks {
 public:
  /// `sizes`: one extent along the axis per rank. The arguments outlive this object.
  ArrayBlocks(void* whole, graph::DType element, const ArrayAxis& axis, std::vector<std::int64_t> sizes);

  [[nodiscard]] std::byte* data() noexcept { return axis_.outer > 1 ? own_.data() : whole_; }
  [[nodiscard]] std::size_t bytes() const noexcept;
  /// Elements of each block.
  [[nodiscard]] std::vector<std::uint64_t> counts() const;
  void take_from_array() { copy(false); }
  void give_to_array() { copy(true); }

 private:
  void copy(bool into_array);

  std::byte* whole_;
  std::int64_t element_bytes_;
  const ArrayAxis& axis_;
  std::vector<std::int64_t> sizes_;
  std::int64_t extent_ = 0;
  std::vector<std::byte> own_;
};

}  // namespace shardrun::runtime
