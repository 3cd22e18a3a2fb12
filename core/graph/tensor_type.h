#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/window.h"

namespace shardrun::graph {

/// The type of an element. A graph's tensors have any type except f64, which is the type in which the reference device
/// stores real numbers.
enum class DType : std::uint8_t { f32, bf16, f16, f64, i32, i64, u8 };

[[nodiscard]] const char* to_string(DType dtype) noexcept;
/// The inverse of to_string; nothing for another text.
[[nodiscard]] std::optional<DType> find_dtype(std::string_view name) noexcept;
/// Bytes of an element.
[[nodiscard]] std::size_t element_bytes(DType dtype) noexcept;
/// Whether it is a floating-point type.
[[nodiscard]] bool is_real(DType dtype) noexcept;

/// Shape, element type and axis names of a value, as if there were one giant device. `axes` has a name per dimension;
/// strategies use these names. A scalar has rank 0.
struct TensorType {
  DType dtype = DType::f32;
  std::vector<std::int64_t> shape;
  std::vector<std::string> axes;

  bool operator==(const TensorType&) const = default;
};

[[nodiscard]] std::int64_t element_count(const std::vector<std::int64_t>& shape) noexcept;
[[nodiscard]] inline std::int64_t element_count(const TensorType& type) noexcept { return element_count(type.shape); }

/// The most elements of a tensor before it is split. Then FLOPs of a product that sums up to 2^17 terms fit 64 bits,
/// and so do bytes of 2^17 such tensors.
inline constexpr std::int64_t max_elements = std::int64_t{1} << 44;

/// Throws Error{job}, naming the tensor and its shape, if it has more than `max_elements`.
void require_countable(const TensorType& type, const std::string& name);

/// "f32[batch 12, seq 64, embed 128]"
[[nodiscard]] std::string to_string(const TensorType& type);

/// An axis whose name says that it groups another: index i of "heads/3" serves the indices 3 i to 3 i + 2 of "heads". A
/// rank that has some indices of "heads" has the indices of "heads/3" that serve them, so several ranks may have one.
struct GroupedAxis {
  std::string of;
  std::int64_t group = 1;

  /// Through which an index of the other axis reads this one.
  [[nodiscard]] Window window() const noexcept { return {.divisor = group, .first = 1 - group}; }
};

/// Nothing if the axis groups no other.
[[nodiscard]] std::optional<GroupedAxis> grouped_axis(std::string_view axis);

}  // namespace shardrun::graph
