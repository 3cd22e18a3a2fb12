#include "core/device/reference/offsets.h"

#include <algorithm>

#include "core/device/reference/views.h"

namespace shardrun::device::reference {

std::vector<std::int64_t> offsets(const TensorView& tensor, const std::vector<std::int64_t>& dims) {
  std::vector<std::int64_t> made = {0};
  for (const std::int64_t dim : dims) {
    const auto d = static_cast<std::uint32_t>(dim);
    const std::int64_t stride = extent(tensor, d + 1, tensor.rank);
    std::vector<std::int64_t> inner;
    for (const std::int64_t outer : made) {
      for (std::int64_t i = 0; i < tensor.shape[d]; ++i) {
        inner.push_back(outer + i * stride);
      }
    }
    made = std::move(inner);
  }
  return made;
}

std::vector<std::int64_t> other_dims(const TensorView& tensor, const std::vector<std::int64_t>& dims) {
  std::vector<std::int64_t> others;
  for (std::int64_t d = 0; d < static_cast<std::int64_t>(tensor.rank); ++d) {
    if (std::find(dims.begin(), dims.end(), d) == dims.end()) {
      others.push_back(d);
    }
  }
  return others;
}

}  // namespace shardrun::device::reference
