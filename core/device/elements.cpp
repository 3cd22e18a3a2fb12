#include "core/device/elements.h"

#include <shardrun/sdk/transport/half.hpp>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

namespace shardrun::device {
namespace {

using graph::DType;
using sdk::Bfloat;
using sdk::Half;

double widened(Bfloat value) noexcept { return static_cast<double>(sdk::widen(value)); }
double widened(Half value) noexcept { return static_cast<double>(sdk::widen(value)); }
template <typename T>
double widened(T value) noexcept {
  return static_cast<double>(value);
}

/// Rounds to odd: a `value` between two floats becomes the one whose last bit is set. Rounding the result to 16 bits
/// then equals one rounding of `value` to 16 bits (Boldo & Melquiond 2008, doi:10.1109/TC.2007.70819).
float to_odd(double value) noexcept {
  const auto nearest = static_cast<float>(value);
  const auto back = static_cast<double>(nearest);
  if (std::isnan(value) || std::isinf(nearest) || back == value) {
    return nearest;
  }
  const auto bits = sdk::detail::bits_as<std::uint32_t>(nearest);
  const bool away = std::fabs(back) > std::fabs(value);
  return sdk::detail::bits_as<float>((bits & 1U) != 0 ? bits : away ? bits - 1 : bits + 1);
}

template <typename T>
T narrowed(double value) noexcept {
  if constexpr (std::is_same_v<T, Bfloat>) {
    return sdk::narrow_to_bfloat(to_odd(value));
  } else if constexpr (std::is_same_v<T, Half>) {
    return sdk::narrow_to_half(to_odd(value));
  } else if constexpr (std::is_integral_v<T>) {
    // Numbers out of range and NaN become the smallest integer.
    constexpr T min = std::numeric_limits<T>::min();
    constexpr double end = 2.0 * static_cast<double>(std::uint64_t{1} << (std::numeric_limits<T>::digits - 1));
    return value >= static_cast<double>(min) && value < end ? static_cast<T>(value) : min;
  } else {
    return static_cast<T>(value);
  }
}

/// Calls visit(T{}) with the C++ type of the elements.
template <typename Visit>
auto with_type(DType dtype, const Visit& visit) {
  switch (dtype) {
    case DType::f32: return visit(float{});
    case DType::bf16: return visit(Bfloat{});
    case DType::f16: return visit(Half{});
    case DType::f64: return visit(double{});
    case DType::i32: return visit(std::int32_t{});
    case DType::i64: return visit(std::int64_t{});
    case DType::i8: return visit(std::int8_t{});
    case DType::u8: break;
  }
  return visit(std::uint8_t{});
}

}  // namespace

double read_element(const TensorView& view, std::int64_t index) noexcept {
  return with_type(view.dtype, [&]<typename T>(T) { return widened(static_cast<const T*>(view.data)[index]); });
}

void read_elements(DType dtype, std::span<const std::byte> bytes, std::span<double> values) noexcept {
  with_type(dtype, [&]<typename T>(T element) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      std::memcpy(&element, bytes.data() + i * sizeof(T), sizeof(T));
      values[i] = widened(element);
    }
  });
}

void write_elements(DType dtype, std::span<const double> values, std::span<std::byte> bytes) noexcept {
  with_type(dtype, [&]<typename T>(T element) {
    for (std::size_t i = 0; i < values.size(); ++i) {
      element = narrowed<T>(values[i]);
      std::memcpy(bytes.data() + i * sizeof(T), &element, sizeof(T));
    }
  });
}

void read_elements(const TensorView& view, std::int64_t first, std::span<double> values) noexcept {
  const std::size_t bytes = graph::element_bytes(view.dtype);
  read_elements(
      view.dtype,
      {static_cast<const std::byte*>(view.data) + static_cast<std::size_t>(first) * bytes, values.size() * bytes},
      values);
}

void write_elements(const TensorView& view, std::int64_t first, std::span<double> values) noexcept {
  const std::size_t bytes = graph::element_bytes(view.dtype);
  if (view.rounded != view.dtype) {
    round_elements(view.rounded, values);
  }
  write_elements(view.dtype, values,
                 {static_cast<std::byte*>(view.data) + static_cast<std::size_t>(first) * bytes, values.size() * bytes});
}

void write_elements(const TensorView& view, std::int64_t first, std::span<const float> values) {
  const auto write = [&]<typename T>(T, auto narrow) {
    T* const to = static_cast<T*>(view.data) + first;
    for (std::size_t i = 0; i < values.size(); ++i) {
      to[i] = narrow(values[i]);
    }
  };
  switch (view.dtype) {
    case DType::f32: write(float{}, [](float value) { return value; }); return;
    case DType::bf16: write(Bfloat{}, [](float value) { return sdk::narrow_to_bfloat(value); }); return;
    case DType::f16: write(Half{}, [](float value) { return sdk::narrow_to_half(value); }); return;
    case DType::i8: write(std::int8_t{}, [](float value) { return static_cast<std::int8_t>(value); }); return;
    default: break;
  }
  std::vector<double> widened(values.begin(), values.end());
  write_elements(view, first, widened);
}

float overflow_of(DType dtype) noexcept {
  return dtype == DType::f16 ? 65520.0F : dtype == DType::bf16 ? 0x1.FFp127F : std::numeric_limits<float>::infinity();
}

void round_elements(DType dtype, std::span<double> values) noexcept {
  const auto round = [&]<typename T>(T) {
    for (double& value : values) {
      value = widened(narrowed<T>(value));
    }
  };
  if (dtype == DType::bf16) {
    round(Bfloat{});
  } else if (dtype == DType::f16) {
    round(Half{});
  }
}

bool has_non_finite(const TensorView& view) noexcept {
  if (!graph::is_real(view.dtype)) {
    return false;
  }
  return with_type(view.dtype, [&]<typename T>(T) {
    const auto* const data = static_cast<const T*>(view.data);
    return std::any_of(data, data + view.elements(), [](T x) { return !std::isfinite(widened(x)); });
  });
}

}  // namespace shardrun::device
