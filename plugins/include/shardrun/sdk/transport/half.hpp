#pragma once

/// The 16-bit floating-point formats of transports and tensors: IEEE binary16 (f16) and bfloat16 (bf16). Kernels of
/// GPUs may use them, too.

#include <cstdint>
#include <cstring>

#ifdef __CUDACC__
#define SHARDRUN_ALSO_ON_GPUS __host__ __device__
#else
#define SHARDRUN_ALSO_ON_GPUS
#endif

namespace shardrun::sdk {

namespace detail {

template <class To, class From>
[[nodiscard]] SHARDRUN_ALSO_ON_GPUS inline To bits_as(From from) noexcept {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

}  // namespace detail

struct Half {
  std::uint16_t bits;
};
struct Bfloat {
  std::uint16_t bits;
};

[[nodiscard]] SHARDRUN_ALSO_ON_GPUS inline float widen(Bfloat value) noexcept {
  return detail::bits_as<float>(static_cast<std::uint32_t>(value.bits) << 16U);
}

/// Rounds to nearest, ties to even.
[[nodiscard]] SHARDRUN_ALSO_ON_GPUS inline Bfloat narrow_to_bfloat(float value) noexcept {
  const auto bits = detail::bits_as<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7FFFU + ((bits >> 16U) & 1U)) >> 16U;
  const std::uint32_t quiet_nan = (bits >> 16U) | 0x40U;
  return {static_cast<std::uint16_t>((bits & 0x7FFFFFFFU) > 0x7F800000U ? quiet_nan : rounded)};
}

[[nodiscard]] SHARDRUN_ALSO_ON_GPUS inline float widen(Half value) noexcept {
  const std::uint32_t sign = (value.bits & 0x8000U) << 16U;
  const std::uint32_t mantissa = value.bits & 0x03FFU;
  const std::uint32_t exponent = value.bits & 0x7C00U;
  const auto subnormal =
      detail::bits_as<std::uint32_t>(static_cast<float>(static_cast<std::int32_t>(mantissa)) * 0x1p-24F);
  const std::uint32_t normal = ((exponent | mantissa) << 13U) + (exponent == 0x7C00U ? 0x70000000U : 0x38000000U);
  return detail::bits_as<float>(sign | (exponent == 0 ? subnormal : normal));
}

/// Rounds to nearest, ties to even, also if the result is subnormal.
[[nodiscard]] SHARDRUN_ALSO_ON_GPUS inline Half narrow_to_half(float value) noexcept {
  const auto bits = detail::bits_as<std::uint32_t>(value);
  const std::uint32_t sign = (bits >> 16U) & 0x8000U;
  const std::uint32_t magnitude = bits & 0x7FFFFFFFU;
  // Below 2^-14 the last bit of an f16 has the value 2^-24. Adding 0.5 makes the float addition round at that bit.
  const std::uint32_t subnormal =
      detail::bits_as<std::uint32_t>(detail::bits_as<float>(magnitude) + 0.5F) - 0x3F000000U;
  const std::uint32_t normal = (magnitude - 0x38000000U + 0xFFFU + ((magnitude >> 13U) & 1U)) >> 13U;
  const std::uint32_t infinite = magnitude > 0x7F800000U ? 0x7E00U : 0x7C00U;
  const std::uint32_t finite = magnitude < 0x38800000U ? subnormal : normal;
  return {static_cast<std::uint16_t>(sign | (magnitude >= 0x477FF000U ? infinite : finite))};
}

}  // namespace shardrun::sdk
