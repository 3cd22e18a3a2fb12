#pragma once

#include <cstring>
#include <string>
#include <vector>

#include "core/device/device.h"
#include "tests/support/model_cases.h"
#include "tests/support/tensor.h"

namespace shardrun::test {

/// Calls visit(index in the whole tensor, index in the part) for every element of a part.
template <typename Visit>
void for_each_element(const device::TensorView& part, const Visit& visit) {
  for (std::int64_t local = 0; local < part.elements(); ++local) {
    std::int64_t rest = local;
    std::int64_t whole = 0;
    std::int64_t stride = 1;
    for (std::uint32_t d = part.rank; d-- > 0;) {
      whole += (part.origin[d] + rest % part.shape[d]) * stride;
      stride *= part.global[d];
      rest /= part.shape[d];
    }
    visit(static_cast<std::size_t>(whole), static_cast<std::size_t>(local));
  }
}

/// The type with which a part is read and written as a tensor of its own.
[[nodiscard]] inline graph::TensorType part_type(const graph::TensorType& whole, const device::TensorView& part) {
  graph::TensorType type = whole;
  type.shape.assign(part.shape.begin(), part.shape.begin() + part.rank);
  return type;
}

/// Copies a part's elements from a whole tensor to the part.
inline void write_part(const Tensor& whole, const device::TensorView& part) {
  Tensor cut = zeros(part_type(whole.type, part));
  for_each_element(part, [&](std::size_t at, std::size_t local) { cut.values[local] = whole.values[at]; });
  write_view(cut, part);
}

/// Copies a part's elements to a whole tensor. `filled` counts how often each element was written. Returns false if an
/// element was written before with different bits.
[[nodiscard]] inline bool gather_part(const device::TensorView& part, Tensor& whole, std::vector<int>& filled) {
  const Tensor cut = read_view(part_type(whole.type, part), part);
  bool same = true;
  for_each_element(part, [&](std::size_t at, std::size_t local) {
    same = same && (filled[at] == 0 || std::memcmp(&whole.values[at], &cut.values[local], sizeof(double)) == 0);
    whole.values[at] = cut.values[local];
    ++filled[at];
  });
  return same;
}

}  // namespace shardrun::test
