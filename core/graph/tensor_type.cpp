#include "core/graph/tensor_type.h"

#include <fmt/format.h>

#include <charconv>
#include <system_error>

#include "core/base/error.h"

namespace shardrun::graph {

const char* to_string(DType dtype) noexcept {
  switch (dtype) {
    case DType::f32: return "f32";
    case DType::bf16: return "bf16";
    case DType::f16: return "f16";
    case DType::f64: return "f64";
    case DType::i32: return "i32";
    case DType::i64: return "i64";
    case DType::u8: return "u8";
    case DType::i8: return "i8";
  }
  return "?";
}

std::optional<DType> find_dtype(std::string_view name) noexcept {
  for (const DType dtype :
       {DType::f32, DType::bf16, DType::f16, DType::f64, DType::i32, DType::i64, DType::u8, DType::i8}) {
    if (name == to_string(dtype)) {
      return dtype;
    }
  }
  return std::nullopt;
}

std::size_t element_bytes(DType dtype) noexcept {
  switch (dtype) {
    case DType::u8:
    case DType::i8: return 1;
    case DType::bf16:
    case DType::f16: return 2;
    case DType::f32:
    case DType::i32: return 4;
    case DType::f64:
    case DType::i64: return 8;
  }
  return 0;
}

bool is_real(DType dtype) noexcept {
  return dtype == DType::f32 || dtype == DType::bf16 || dtype == DType::f16 || dtype == DType::f64;
}

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
    throw Error(ErrorCode::job,
                fmt::format("{} would be {}, more than the {} elements that a tensor may have: make the "
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

std::optional<GroupedAxis> grouped_axis(std::string_view axis) {
  const std::size_t slash = axis.rfind('/');
  if (slash == std::string_view::npos || slash == 0) {
    return std::nullopt;
  }
  GroupedAxis grouped{.of = std::string(axis.substr(0, slash))};
  const char* end = axis.data() + axis.size();
  const auto [read, error] = std::from_chars(axis.data() + slash + 1, end, grouped.group);
  return error == std::errc() && read == end && grouped.group > 1 ? std::optional(grouped) : std::nullopt;
}

}  // namespace shardrun::graph
