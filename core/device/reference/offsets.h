#pragma once

#include <cstdint>
#include <vector>

#include "core/device/device.h"

namespace shardrun::device::reference {

/// Loops over some dimensions of a tensor, the last one innermost. Returns where each iteration's element lies, in
/// elements from the tensor's first.
[[nodiscard]] std::vector<std::int64_t> offsets(const TensorView& tensor, const std::vector<std::int64_t>& dims);

/// The dimensions of a tensor that are not in `dims`, in ascending order.
[[nodiscard]] std::vector<std::int64_t> other_dims(const TensorView& tensor, const std::vector<std::int64_t>& dims);

}  // namespace shardrun::device::reference
