#include "core/graph/tensor_type.h"

#include <fmt/format.h>

#include "core/base/error.h"

namespace shardrun::graph {

const char* to_string(DType dtype) noexcept { return dtype == DType::f32 ? "f32" : "i32"; }

std::int64_t element_count(const std::vector<std::int64_t>& shape) noexcept {
  std::int64_t count = 1;
  for (const std::int64_t size : shape) {
    count *= size;
  }
  return count;
}

void require_countable(const TensorType& type, const std::string& name) {
  std::int64_t left = max_elements;
  for (const std::int64_t size : type.shape) {
    left = size > 0 ? left / size : left;
  }
  if (left == 0) {
    throw Error(ErrorCode::job, fmt::format("{} would be {}, more than the {} elements that a tensor may have: make the "
                                            "model, batch or context smaller",
                                            name, to_string(type), max_elements));
  }
}

std::string to_string(const TensorType& type) {
  std::string text = fmt::format("{}[", to_string(type.dtype));
  for (std::size_t d = 0; d < type.shape.size(); ++d) {
    text += fmt::format("{}{} {}", d == 0 ? "" : ", ", type.axes[d], type.shape[d]);
  }
  return text + "]";
}

}  // namespace shardrun::graph
