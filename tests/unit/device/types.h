#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/graph/tensor_type.h"

namespace shardrun::test {

using Shape = std::vector<std::int64_t>;

/// The type of a tensor whose dimensions have no names.
[[nodiscard]] inline graph::TensorType type_of(const Shape& shape, graph::DType dtype = graph::DType::bf16) {
  return {.dtype = dtype, .shape = shape, .axes = std::vector<std::string>(shape.size())};
}

}  // namespace shardrun::test
