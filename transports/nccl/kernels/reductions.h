#pragma once

#include <shardrun/sdk/transport/half.hpp>

#include <cstdint>

/// Reductions of floating-point numbers that NCCL lacks: those in the order of the members, and minima and maxima that
/// keep NaN. nvcc compiles this file for GPUs (kernels.cu). The tests compile it as C++.
namespace shardrun::nccl_transport::kernels {

/// The elements that a thread computes: first, first + step, ….
struct Share {
  std::uint64_t first;
  std::uint64_t step;
};

/// to[i] = ((m0[i] + m1[i]) + m2[i]) + … over the members m, or their product. `parts` contains the members' elements
/// one after the other, except those of member `own`, which are at `own_part`. `to` may be `own_part`.
struct Reduction {
  const void* parts;
  const void* own_part;
  void* to;
  std::uint64_t count;
  std::uint32_t members;
  std::uint32_t own;
};

/// Converts between floating-point numbers and integer keys that have the same order: int32 for f32, f16 and bf16,
/// int64 for f64. The key of NaN is the largest integer, or for a minimum the least.
struct Keying {
  const void* from;
  void* to;
  std::uint64_t count;
  std::uint32_t is_least;  ///< 1: the keys are for a minimum
};

SHARDRUN_ALSO_ON_GPUS inline float widened(float value) { return value; }
SHARDRUN_ALSO_ON_GPUS inline double widened(double value) { return value; }
SHARDRUN_ALSO_ON_GPUS inline float widened(sdk::Half value) { return sdk::widen(value); }
SHARDRUN_ALSO_ON_GPUS inline float widened(sdk::Bfloat value) { return sdk::widen(value); }
SHARDRUN_ALSO_ON_GPUS inline void narrow(float value, float& to) { to = value; }
SHARDRUN_ALSO_ON_GPUS inline void narrow(double value, double& to) { to = value; }
SHARDRUN_ALSO_ON_GPUS inline void narrow(float value, sdk::Half& to) { to = sdk::narrow_to_half(value); }
SHARDRUN_ALSO_ON_GPUS inline void narrow(float value, sdk::Bfloat& to) { to = sdk::narrow_to_bfloat(value); }

struct Sum {
  template <class T>
  SHARDRUN_ALSO_ON_GPUS static T of(T a, T b) {
    return a + b;
  }
};
struct Product {
  template <class T>
  SHARDRUN_ALSO_ON_GPUS static T of(T a, T b) {
    return a * b;
  }
};

template <class T, class Act>
SHARDRUN_ALSO_ON_GPUS void reduce(const Reduction& given, Share share) {
  const T* const parts = static_cast<const T*>(given.parts);
  const T* const own = static_cast<const T*>(given.own_part);
  for (std::uint64_t i = share.first; i < given.count; i += share.step) {
    auto sum = widened(given.own == 0 ? own[i] : parts[i]);
    for (std::uint32_t member = 1; member < given.members; ++member) {
      const std::uint64_t part = member < given.own ? member : member - 1;
      sum = Act::of(sum, widened(member == given.own ? own[i] : parts[part * given.count + i]));
    }
    narrow(sum, static_cast<T*>(given.to)[i]);
  }
}

struct Key32 {
  using Type = std::int32_t;
};
struct Key64 {
  using Type = std::int64_t;
};
SHARDRUN_ALSO_ON_GPUS inline Key32 key_for(float) { return {}; }
SHARDRUN_ALSO_ON_GPUS inline Key64 key_for(double) { return {}; }

/// Inverts all bits except the sign of a negative number, because negative numbers have the reverse order as integers.
/// This function is its own inverse.
template <class Integer>
SHARDRUN_ALSO_ON_GPUS Integer turned(Integer bits) {
  constexpr Integer all_but_sign = static_cast<Integer>(~(std::uint64_t{1} << 63U) >> (64U - 8U * sizeof(Integer)));
  return bits < 0 ? bits ^ all_but_sign : bits;
}

template <class T>
SHARDRUN_ALSO_ON_GPUS void to_keys(const Keying& given, Share share) {
  using Number = decltype(widened(T{}));
  using Key = typename decltype(key_for(Number{}))::Type;
  constexpr Key greatest = static_cast<Key>(~(std::uint64_t{1} << 63U) >> (64U - 8U * sizeof(Key)));
  for (std::uint64_t i = share.first; i < given.count; i += share.step) {
    const Number number = widened(static_cast<const T*>(given.from)[i]);
    const Key nan = given.is_least != 0 ? -greatest - 1 : greatest;
    static_cast<Key*>(given.to)[i] = number != number ? nan : turned(sdk::detail::bits_as<Key>(number));
  }
}

/// Converts keys back to numbers. The key of NaN becomes a NaN.
template <class T>
SHARDRUN_ALSO_ON_GPUS void to_numbers(const Keying& given, Share share) {
  using Number = decltype(widened(T{}));
  using Key = typename decltype(key_for(Number{}))::Type;
  for (std::uint64_t i = share.first; i < given.count; i += share.step) {
    narrow(sdk::detail::bits_as<Number>(turned(static_cast<const Key*>(given.from)[i])), static_cast<T*>(given.to)[i]);
  }
}

}  // namespace shardrun::nccl_transport::kernels

/// Lists every kernel: KERNEL(name, arguments, function).
#define SHARDRUN_NCCL_KERNELS_OF(KERNEL, suffix, Type)                                                     \
  KERNEL(shardrun_sum_##suffix, Reduction, (reduce<Type, shardrun::nccl_transport::kernels::Sum>))         \
  KERNEL(shardrun_product_##suffix, Reduction, (reduce<Type, shardrun::nccl_transport::kernels::Product>)) \
  KERNEL(shardrun_to_keys_##suffix, Keying, (to_keys<Type>))                                               \
  KERNEL(shardrun_to_numbers_##suffix, Keying, (to_numbers<Type>))
#define SHARDRUN_NCCL_KERNELS(KERNEL)                        \
  SHARDRUN_NCCL_KERNELS_OF(KERNEL, f32, float)               \
  SHARDRUN_NCCL_KERNELS_OF(KERNEL, f64, double)              \
  SHARDRUN_NCCL_KERNELS_OF(KERNEL, f16, shardrun::sdk::Half) \
  SHARDRUN_NCCL_KERNELS_OF(KERNEL, bf16, shardrun::sdk::Bfloat)
