#pragma once

#include <math.h>

#include <cstddef>
#include <cstdint>

#include "core/base/on_device.h"
#include "core/device/device.h"

/// What kernels know about their operands. The host makes these of tensor views; a kernel has them by value.
namespace shardrun::device::cuda {

/// Bits of a bfloat16 as the float that they stand for.
[[nodiscard]] SHARDRUN_ON_BOTH inline float float_of_bits(std::uint32_t bits) {
  float value;
  __builtin_memcpy(&value, &bits, sizeof(value));
  return value;
}
[[nodiscard]] SHARDRUN_ON_BOTH inline float float_of_bfloat(std::uint16_t bits) {
  return float_of_bits(static_cast<std::uint32_t>(bits) << 16U);
}
/// Rounded to nearest, ties to even. NaN stays NaN.
[[nodiscard]] SHARDRUN_ON_BOTH inline std::uint16_t bfloat_of_float(float value) {
  std::uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof(bits));
  if (value != value) {
    return static_cast<std::uint16_t>((bits >> 16U) | 0x40U);
  }
  return static_cast<std::uint16_t>((bits + 0x7FFFU + ((bits >> 16U) & 1U)) >> 16U);
}

/// Consecutive elements as floats.
template <int count>
struct Pack {
  float values[count];
  [[nodiscard]] SHARDRUN_ON_DEVICE float& operator[](int i) { return values[i]; }
  [[nodiscard]] SHARDRUN_ON_DEVICE float operator[](int i) const { return values[i]; }
};

/// The elements of a tensor of float32 or bfloat16. All kernels compute in float32; writing rounds.
struct Reals {
  unsigned char* data = nullptr;
  bool is_bfloat = false;

  [[nodiscard]] SHARDRUN_ON_DEVICE float get(std::int64_t i) const {
    return is_bfloat ? float_of_bfloat(reinterpret_cast<const std::uint16_t*>(data)[i])
                     : reinterpret_cast<const float*>(data)[i];
  }
  SHARDRUN_ON_DEVICE void set(std::int64_t i, float value) const {
    if (is_bfloat) {
      reinterpret_cast<std::uint16_t*>(data)[i] = bfloat_of_float(value);
    } else {
      reinterpret_cast<float*>(data)[i] = value;
    }
  }
  /// For ops that accumulate.
  SHARDRUN_ON_DEVICE void put(std::int64_t i, float value, bool accumulate) const {
    set(i, accumulate ? get(i) + value : value);
  }

  /// Elements from i on, in one access. REQUIRES: `count` divides i, and is 1 or the tensor is aligned for it
  /// (is_aligned).
  template <int count>
  [[nodiscard]] SHARDRUN_ON_DEVICE Pack<count> get_pack(std::int64_t i) const {
    Pack<count> pack;
    if (is_bfloat) {
      struct alignas(2 * count) Bits {
        std::uint16_t values[count];
      };
      const Bits bits = *reinterpret_cast<const Bits*>(data + 2 * i);
      for (int k = 0; k < count; ++k) {
        pack[k] = float_of_bfloat(bits.values[k]);
      }
    } else {
      struct alignas(4 * count) Floats {
        float values[count];
      };
      const Floats floats = *reinterpret_cast<const Floats*>(data + 4 * i);
      for (int k = 0; k < count; ++k) {
        pack[k] = floats.values[k];
      }
    }
    return pack;
  }
  template <int count>
  SHARDRUN_ON_DEVICE void set_pack(std::int64_t i, const Pack<count>& pack) const {
    if (is_bfloat) {
      struct alignas(2 * count) Bits {
        std::uint16_t values[count];
      };
      Bits bits;
      for (int k = 0; k < count; ++k) {
        bits.values[k] = bfloat_of_float(pack[k]);
      }
      *reinterpret_cast<Bits*>(data + 2 * i) = bits;
    } else {
      struct alignas(4 * count) Floats {
        float values[count];
      };
      Floats floats;
      for (int k = 0; k < count; ++k) {
        floats.values[k] = pack[k];
      }
      *reinterpret_cast<Floats*>(data + 4 * i) = floats;
    }
  }
};

/// Elements that kernels read and write at once: 16 bytes of float32.
inline constexpr int pack_size = 4;

[[nodiscard]] inline Reals reals(const TensorView& tensor) noexcept {
  return {static_cast<unsigned char*>(tensor.data), tensor.dtype == graph::DType::bf16};
}
[[nodiscard]] inline std::int32_t* integers(const TensorView& tensor) noexcept {
  return static_cast<std::int32_t*>(tensor.data);
}
/// Whether get_pack<pack_size>() may be used.
[[nodiscard]] inline bool is_aligned(const TensorView& tensor) noexcept {
  return reinterpret_cast<std::uintptr_t>(tensor.data) % 16 == 0;
}
/// Whether all tensors of a call are aligned.
[[nodiscard]] inline bool are_aligned(const KernelCall& call) noexcept {
  bool all = true;
  for (const TensorView& tensor : call.inputs) {
    all = all && is_aligned(tensor);
  }
  for (const TensorView& tensor : call.outputs) {
    all = all && is_aligned(tensor);
  }
  return all;
}

/// Product of the dimensions [first, last).
[[nodiscard]] inline std::int64_t extent(const TensorView& tensor, std::uint32_t first, std::uint32_t last) noexcept {
  std::int64_t product = 1;
  for (std::uint32_t d = first; d < last; ++d) {
    product *= tensor.shape[d];
  }
  return product;
}
/// A tensor as a matrix: its last dimension, and all others.
[[nodiscard]] inline std::int64_t columns(const TensorView& tensor) noexcept {
  return extent(tensor, tensor.rank - 1, tensor.rank);
}
[[nodiscard]] inline std::int64_t rows(const TensorView& tensor) noexcept { return extent(tensor, 0, tensor.rank - 1); }

/// The mathematics of formulas (core/graph/formulas.h) on one float.
struct FloatMath {
  using Number = float;
  SHARDRUN_ON_BOTH static constexpr float constant(double value) { return static_cast<float>(value); }
  SHARDRUN_ON_BOTH static float sin(float x) { return ::sinf(x); }
  SHARDRUN_ON_BOTH static float cos(float x) { return ::cosf(x); }
  SHARDRUN_ON_BOTH static float exp(float x) { return ::expf(x); }
  SHARDRUN_ON_BOTH static float log(float x) { return ::logf(x); }
  SHARDRUN_ON_BOTH static float sqrt(float x) { return ::sqrtf(x); }
  SHARDRUN_ON_BOTH static float tanh(float x) { return ::tanhf(x); }
  SHARDRUN_ON_BOTH static float erf(float x) { return ::erff(x); }
  SHARDRUN_ON_BOTH static float erfc(float x) { return ::erfcf(x); }
  SHARDRUN_ON_BOTH static float power(float a, float b) { return ::powf(a, b); }
};

}  // namespace shardrun::device::cuda
