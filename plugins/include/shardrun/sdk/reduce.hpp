#pragma once

/// Reductions of elements in host memory, in loops that compilers vectorise.

#include <shardrun/transport.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

namespace shardrun::sdk {

namespace detail {

template <class To, class From>
[[nodiscard]] inline To bits_as(From from) noexcept {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

/// The half-precision formats: 16 bits that stand for a float.
struct Half {
  std::uint16_t bits;
};
struct Bfloat {
  std::uint16_t bits;
};

[[nodiscard]] inline float widen(Bfloat value) noexcept {
  return bits_as<float>(static_cast<std::uint32_t>(value.bits) << 16U);
}

/// Rounds to nearest, ties to even.
[[nodiscard]] inline Bfloat narrow_to_bfloat(float value) noexcept {
  const auto bits = bits_as<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7FFFU + ((bits >> 16U) & 1U)) >> 16U;
  const std::uint32_t quiet_nan = (bits >> 16U) | 0x40U;
  return {static_cast<std::uint16_t>((bits & 0x7FFFFFFFU) > 0x7F800000U ? quiet_nan : rounded)};
}

[[nodiscard]] inline float widen(Half value) noexcept {
  const std::uint32_t sign = (value.bits & 0x8000U) << 16U;
  const std::uint32_t mantissa = value.bits & 0x03FFU;
  const std::uint32_t exponent = value.bits & 0x7C00U;
  const auto subnormal = bits_as<std::uint32_t>(static_cast<float>(static_cast<std::int32_t>(mantissa)) * 0x1p-24F);
  const std::uint32_t normal = ((exponent | mantissa) << 13U) + (exponent == 0x7C00U ? 0x70000000U : 0x38000000U);
  return bits_as<float>(sign | (exponent == 0 ? subnormal : normal));
}

/// Rounds to nearest, ties to even, subnormal results too.
[[nodiscard]] inline Half narrow_to_half(float value) noexcept {
  const auto bits = bits_as<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16U) & 0x8000U;
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  // Below 2^-14 a half's last bit weighs 2^-24: added to 0.5, the float's adder rounds to exactly that.
  const std::uint32_t subnormal = bits_as<std::uint32_t>(bits_as<float>(magnitude) + 0.5F) - 0x3F000000U;
  const std::uint32_t normal = (magnitude - 0x38000000U + 0xFFFU + ((magnitude >> 13U) & 1U)) >> 13U;
  const std::uint32_t infinite = magnitude > 0x7F800000U ? 0x7E00U : 0x7C00U;
  const std::uint32_t finite = magnitude < 0x38800000U ? subnormal : normal;
  return {static_cast<std::uint16_t>(sign | (magnitude >= 0x477FF000U ? infinite : finite))};
}

template <class T, class Combine>
void combine_all(void* to, const void* from, std::uint64_t count, Combine combine) noexcept {
  auto* into = static_cast<T*>(to);
  const auto* other = static_cast<const T*>(from);
  for (std::uint64_t i = 0; i < count; ++i) {
    if constexpr (std::is_same_v<T, Half>) {
      into[i] = narrow_to_half(combine(widen(into[i]), widen(other[i])));
    } else if constexpr (std::is_same_v<T, Bfloat>) {
      into[i] = narrow_to_bfloat(combine(widen(into[i]), widen(other[i])));
    } else {
      into[i] = combine(into[i], other[i]);
    }
  }
}

/// Integers wrap around: their sums and products are those of unsigned numbers wide enough not to be promoted.
template <class T>
struct Sum {
  T operator()(T a, T b) const noexcept {
    if constexpr (std::is_integral_v<T>) {
      return static_cast<T>(static_cast<std::uint64_t>(a) + static_cast<std::uint64_t>(b));
    } else {
      return a + b;
    }
  }
};

template <class T>
struct Product {
  T operator()(T a, T b) const noexcept {
    if constexpr (std::is_integral_v<T>) {
      return static_cast<T>(static_cast<std::uint64_t>(a) * static_cast<std::uint64_t>(b));
    } else {
      return a * b;
    }
  }
};

/// Only a NaN differs from itself. Its comparisons are all false: as `a` it stays.
template <class T>
struct Min {
  T operator()(T a, T b) const noexcept { return b < a || b != b ? b : a; }
};

template <class T>
struct Max {
  T operator()(T a, T b) const noexcept { return a < b || b != b ? b : a; }
};

/// T: what is stored. C: what is computed with.
template <class T, class C = T>
void reduce_as(std::uint32_t reduction, void* to, const void* from, std::uint64_t count) noexcept {
  switch (reduction) {
    case SR_REDUCE_SUM: return combine_all<T>(to, from, count, Sum<C>());
    case SR_REDUCE_PRODUCT: return combine_all<T>(to, from, count, Product<C>());
    case SR_REDUCE_MIN: return combine_all<T>(to, from, count, Min<C>());
    case SR_REDUCE_MAX: return combine_all<T>(to, from, count, Max<C>());
    default: return;
  }
}

}  // namespace detail

/// to[i] = to[i] and from[i] reduced, for `count` elements. f16 and bf16 are computed in float and rounded to nearest.
/// Buffers are aligned for their dtype and do not overlap.
inline void reduce(std::uint32_t dtype, std::uint32_t reduction, void* to, const void* from,
                   std::uint64_t count) noexcept {
  switch (dtype) {
    case SR_DTYPE_F32: return detail::reduce_as<float>(reduction, to, from, count);
    case SR_DTYPE_F64: return detail::reduce_as<double>(reduction, to, from, count);
    case SR_DTYPE_F16: return detail::reduce_as<detail::Half, float>(reduction, to, from, count);
    case SR_DTYPE_BF16: return detail::reduce_as<detail::Bfloat, float>(reduction, to, from, count);
    case SR_DTYPE_I8: return detail::reduce_as<std::int8_t>(reduction, to, from, count);
    case SR_DTYPE_U8: return detail::reduce_as<std::uint8_t>(reduction, to, from, count);
    case SR_DTYPE_I32: return detail::reduce_as<std::int32_t>(reduction, to, from, count);
    case SR_DTYPE_U32: return detail::reduce_as<std::uint32_t>(reduction, to, from, count);
    case SR_DTYPE_I64: return detail::reduce_as<std::int64_t>(reduction, to, from, count);
    case SR_DTYPE_U64: return detail::reduce_as<std::uint64_t>(reduction, to, from, count);
    default: return;
  }
}

}  // namespace shardrun::sdk
