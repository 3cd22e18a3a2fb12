#pragma once

#include <cstdint>
#include <vector>

#include "core/device/device.h"

namespace shardrun::device::reference {

/// Loops over the dimensions `dims` of a tensor, the last of them innermost. Returns the row-major index of each
/// iteration's element, with index 0 in all other dimensions.
[[nodiscard]] std::vector<std::int64_t> offsets(const TensorView& tensor, const std::vector<std::int64_t>& dims);

/// The dimensions of a tensor that are not in `dims`, in ascending order.
[[nodiscard]] std::vector<std::int64_t> other_dims(const TensorView& tensor, const std::vector<std::int64_t>& dims);

}  // namespace shardrun::device::reference
