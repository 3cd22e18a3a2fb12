#pragma once

#include <array>
#include <cstddef>
#include <optional>

#include "core/device/cuda/runtime/product_steps.h"

namespace shardrun::device::cuda {

/// A product of bfloat16 whose operands and result are copied to the scratch and back where their rows are not aligned.
/// Nothing: all are, or it is not worth it. `tensors`: of the op, that are a, b and c.
[[nodiscard]] std::optional<ProductSteps> padded_steps(const Product& product,
                                                       const std::array<std::size_t, 3>& tensors,
                                                       const Padding& padding);

}  // namespace shardrun::device::cuda
