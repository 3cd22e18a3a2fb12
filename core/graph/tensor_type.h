#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/window.h"

namespace shardrun::graph {

/// Element types. The tensors of a graph never have type f64: the reference device stores their real numbers in it.
enum class DType : std::uint8_t { f32, bf16, f16, f64, i32, i64, u8, i8 };

[[nodiscard]] const char* to_string(DType dtype) noexcept;
/// The inverse of to_string(); nothing if no type has the name.
[[nodiscard]] std::optional<DType> find_dtype(std::string_view name) noexcept;
[[nodiscard]] std::size_t element_bytes(DType dtype) noexcept;
/// Whether a type is floating-point.
[[nodiscard]] bool is_real(DType dtype) noexcept;

/// Shape, element type and axis names of a value, before it is split. `axes` has a name per dimension; strategies use
/// these names. A scalar has no dimensions.
struct TensorType {
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;
  std::vector<std::string> axes;

  bool operator==(const TensorType&) const = default;
};

[[nodiscard]] std::int64_t element_count(const std::vector<std::int64_t>& shape) noexcept;
[[nodiscard]] inline std::int64_t element_count(const TensorType& type) noexcept { return element_count(type.shape); }

/// The largest number of elements of a tensor before it is split. With it, the FLOPs of a product that sums up to 2^17
/// terms fit 64 bits, and so do the bytes of 2^17 such tensors.
inline constexpr std::int64_t max_elements = std::int64_t{1} << 44;

/// Throws Error{job}, naming the tensor and its shape, if it has more than `max_elements`.
void require_countable(const TensorType& type, const std::string& name);

/// For example "f32[batch 12, seq 64, embed 128]".
[[nodiscard]] std::string to_string(const TensorType& type);

/// An axis that groups another axis: index i of "heads/3" serves indices 3 i to 3 i + 2 of "heads". A rank with some
/// indices of "heads" has the indices of "heads/3" that serve these, so several ranks may have the same one.
struct GroupedAxis {
  std::string of;
  std::int64_t group = 1;

  /// The window through which an index of the other axis reads this one.
  [[nodiscard]] Window window() const noexcept { return {.divisor = group, .first = 1 - group}; }
};

/// Parses the name of an axis; nothing if the axis does not group another one.
[[nodiscard]] std::optional<GroupedAxis> grouped_axis(std::string_view axis);

}  // namespace shardrun::graph
