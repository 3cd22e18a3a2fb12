#pragma once

#include <math.h>

#include <cstddef>
#include <cstdint>

#include "core/base/on_device.h"
#include "core/device/device.h"

/// Operands of kernels. The host makes them from tensor views; kernels get them by value.
namespace shardrun::device::cuda {

/// The float with these bits.
[[nodiscard]] SHARDRUN_ON_BOTH inline float float_of_bits(std::uint32_t bits) {
  float value;
  __builtin_memcpy(&value, &bits, sizeof(value));
  return value;
}
[[nodiscard]] SHARDRUN_ON_BOTH inline std::uint32_t bits_of_float(float value) {
  std::uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof(bits));
  return bits;
}
[[nodiscard]] SHARDRUN_ON_BOTH inline float float_of_bfloat(std::uint16_t bits) {
  return float_of_bits(static_cast<std::uint32_t>(bits) << 16U);
}
/// Rounds to the nearest bfloat16, ties to even. NaN stays NaN.
[[nodiscard]] SHARDRUN_ON_BOTH inline std::uint16_t bfloat_of_float(float value) {
  const std::uint32_t bits = bits_of_float(value);
  if (value != value) {
    return static_cast<std::uint16_t>((bits >> 16U) | 0x40U);
  }
  return static_cast<std::uint16_t>((bits + 0x7FFFU + ((bits >> 16U) & 1U)) >> 16U);
}

/// Two floats rounded to bfloat16; the first is in the lower half of the word.
[[nodiscard]] SHARDRUN_ON_DEVICE inline std::uint32_t bfloat_pair(float first, float second) {
#if defined(__CUDA_ARCH__)
  std::uint32_t word;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(word) : "f"(second), "f"(first));
  return word;
#else
  return bfloat_of_float(first) | static_cast<std::uint32_t>(bfloat_of_float(second)) << 16U;
#endif
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
  /// Sets an element, or adds to the element if `accumulate` is true.
  SHARDRUN_ON_DEVICE void put(std::int64_t i, float value, bool accumulate) const {
    set(i, accumulate ? get(i) + value : value);
  }

  /// Reads `count` elements from i on, bfloat16 in one access, float32 in two. REQUIRES: i is a multiple of `count`,
  /// and `count` is 1 or the tensor is aligned (is_aligned).
  template <int count>
  [[nodiscard]] SHARDRUN_ON_DEVICE Pack<count> get_pack(std::int64_t i) const {
    Pack<count> pack;
    if constexpr (count == 1) {
      pack[0] = get(i);
    } else {
      // Both types begin with the same access, and nothing waits for it here. So the loads of several operands are in
      // flight at once.
      const auto* const from = reinterpret_cast<const Half<count>*>(data + (i << (is_bfloat ? 1 : 2)));
      const Half<count> first = from[0];
      Half<count> second = {};
      if (!is_bfloat) {
        second = from[1];
      }
      SHARDRUN_UNROLLED for (int k = 0; k < count; ++k) {
        const std::uint32_t pair = first.words[k / 2];
        const std::uint32_t of_bfloat = k % 2 == 0 ? pair << 16U : pair & 0xFFFF0000U;
        const std::uint32_t of_float = k < count / 2 ? first.words[k] : second.words[k - count / 2];
        pack[k] = float_of_bits(is_bfloat ? of_bfloat : of_float);
      }
    }
    return pack;
  }
  template <int count>
  SHARDRUN_ON_DEVICE void set_pack(std::int64_t i, const Pack<count>& pack) const {
    if constexpr (count == 1) {
      set(i, pack[0]);
    } else {
      auto* const to = reinterpret_cast<Half<count>*>(data + (i << (is_bfloat ? 1 : 2)));
      Half<count> first;
      Half<count> second;
      SHARDRUN_UNROLLED for (int k = 0; k < count / 2; ++k) {
        first.words[k] = is_bfloat ? bfloat_pair(pack[2 * k], pack[2 * k + 1]) : bits_of_float(pack[k]);
        second.words[k] = bits_of_float(pack[k + count / 2]);
      }
      to[0] = first;
      if (!is_bfloat) {
        to[1] = second;
      }
    }
  }

 private:
  /// `count` bfloat16 elements, or half as many float32 elements.
  template <int count>
  struct alignas(2 * count) Half {
    std::uint32_t words[count / 2];
  };
};

/// The number of elements that a kernel reads and writes at once: 16 bytes of bfloat16.
inline constexpr int pack_size = 8;

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
/// A tensor as a matrix: the last dimension makes the columns, all others the rows.
[[nodiscard]] inline std::int64_t columns(const TensorView& tensor) noexcept {
  return extent(tensor, tensor.rank - 1, tensor.rank);
}
[[nodiscard]] inline std::int64_t rows(const TensorView& tensor) noexcept { return extent(tensor, 0, tensor.rank - 1); }

/// The formulas of core/graph/formulas.h are instantiated here with this number type (float) and these functions.
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

inline constexpr float log2_e = 1.44269504F;

/// 2^x. A GPU needs one instruction and gives 0 for results below 2^-126. To get e^x, scores are multiplied by log2 e.
[[nodiscard]] SHARDRUN_ON_DEVICE inline float power_of_two(float x) {
#if defined(__CUDA_ARCH__)
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
#else
  return ::exp2f(x);
#endif
}
/// e^x with a relative error of at most about 2^-22 (1 + |x|). That is enough for the terms of a softmax.
[[nodiscard]] SHARDRUN_ON_DEVICE inline float fast_exp(float x) { return power_of_two(log2_e * x); }

}  // namespace shardrun::device::cuda
