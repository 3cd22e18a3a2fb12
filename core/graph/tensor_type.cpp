#include "core/graph/tensor_type.h"

#include <fmt/format.h>

namespace shardrun::graph {

const char* to_string(DType dtype) noexcept { return dtype == DType::f32 ? "f32" : "i32"; }

std::int64_t element_count(const std::vector<std::int64_t>& shape) noexcept {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) {
    count *= size;
  }
  return count;
}

std::string to_string(const TensorType& type) {
  std::string text = fmt::format("{}[", to_string(type.dtype));
  for (std::size_t d = 0; d < type.shape.size(); ++d) {
    text += fmt::format("{}{} {}", d == 0 ? "" : ", ", type.axes[d], type.shape[d]);
  }
  return text + "]";
}

}  // namespace shardrun::graph
