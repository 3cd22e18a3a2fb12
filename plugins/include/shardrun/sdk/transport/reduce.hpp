#pragma once

/// Reductions of elements in host memory. They use the widest vectors of the processor at run time, whatever the
/// compiler targets.

#include <shardrun/sdk/transport/half.hpp>
#include <shardrun/transport.h>

#include <cstdint>
#include <cstring>
#include <type_traits>

#if defined(__x86_64__) && (defined(__GNUC__) || defined(__clang__))
#define SHARDRUN_X86_VECTORS
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace shardrun::sdk {

namespace detail {

/// Integers wrap around, because they are added and multiplied as unsigned numbers that are never promoted to int.
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

/// Keeps a NaN. Comparisons with a NaN are false, so a NaN in `a` stays; `b != b` takes a NaN in `b`.
template <class T>
struct Min {
  T operator()(T a, T b) const noexcept { return b < a || b != b ? b : a; }
};

template <class T>
struct Max {
  T operator()(T a, T b) const noexcept { return a < b || b != b ? b : a; }
};

/// Computes, one element at a time, the same results as the vectors below.
template <class T, template <class> class Combine>
struct Scalar {
  [[nodiscard]] static T reduced(T a, T b) noexcept {
    if constexpr (std::is_same_v<T, Half>) {
      return narrow_to_half(Combine<float>()(widen(a), widen(b)));
    } else if constexpr (std::is_same_v<T, Bfloat>) {
      return narrow_to_bfloat(Combine<float>()(widen(a), widen(b)));
    } else {
      return Combine<T>()(a, b);
    }
  }
};

template <class T>
[[nodiscard]] T reduced(std::uint32_t reduction, T a, T b) noexcept {
  switch (reduction) {
    case SR_REDUCE_SUM: return Scalar<T, Sum>::reduced(a, b);
    case SR_REDUCE_PRODUCT: return Scalar<T, Product>::reduced(a, b);
    case SR_REDUCE_MIN: return Scalar<T, Min>::reduced(a, b);
    case SR_REDUCE_MAX: return Scalar<T, Max>::reduced(a, b);
    default: return a;
  }
}

namespace baseline {
#define SHARDRUN_VECTOR_BYTES 16
#define SHARDRUN_TARGET __attribute__((always_inline)) inline
#define SHARDRUN_TARGET_LOOP
#include <shardrun/sdk/transport/reduce_vectors.inc>
#undef SHARDRUN_TARGET_LOOP
#undef SHARDRUN_TARGET
#undef SHARDRUN_VECTOR_BYTES
}  // namespace baseline

#ifdef SHARDRUN_X86_VECTORS
namespace avx2 {
#define SHARDRUN_VECTOR_BYTES 32
#define SHARDRUN_TARGET __attribute__((target("avx2,f16c"), always_inline)) inline
#define SHARDRUN_TARGET_LOOP __attribute__((target("avx2,f16c")))
#define SHARDRUN_HALF_LOAD(to, from) \
  (to) = reinterpret_cast<Wide>(_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from))))
#define SHARDRUN_HALF_STORE(to, bits) \
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_cvtps_ph(reinterpret_cast<__m256>(bits), 0))
#define SHARDRUN_NARROW(to, bits)                                                            \
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to),                                           \
                   _mm_packus_epi32(_mm256_castsi256_si128(reinterpret_cast<__m256i>(bits)), \
                                    _mm256_extracti128_si256(reinterpret_cast<__m256i>(bits), 1)))
#include <shardrun/sdk/transport/reduce_vectors.inc>
#undef SHARDRUN_NARROW
#undef SHARDRUN_HALF_STORE
#undef SHARDRUN_HALF_LOAD
#undef SHARDRUN_TARGET_LOOP
#undef SHARDRUN_TARGET
#undef SHARDRUN_VECTOR_BYTES
}  // namespace avx2

namespace avx512 {
#define SHARDRUN_VECTOR_BYTES 64
#define SHARDRUN_TARGET __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl"), always_inline)) inline
#define SHARDRUN_TARGET_LOOP __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl")))
#define SHARDRUN_HALF_LOAD(to, from) \
  (to) = reinterpret_cast<Wide>(     \
      _mm512_maskz_cvtph_ps(0xFFFF, _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))))
#define SHARDRUN_HALF_STORE(to, bits) \
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_maskz_cvtps_ph(0xFFFF, reinterpret_cast<__m512>(bits), 0))
#include <shardrun/sdk/transport/reduce_vectors.inc>
#undef SHARDRUN_HALF_STORE
#undef SHARDRUN_HALF_LOAD
#undef SHARDRUN_TARGET_LOOP
#undef SHARDRUN_TARGET
#undef SHARDRUN_VECTOR_BYTES
}  // namespace avx512
#endif

}  // namespace detail

/// Instruction sets for which reductions are compiled.
enum class Vectors : std::uint32_t { baseline, avx2, avx512 };

/// The best instruction set that this processor and its operating system support.
[[nodiscard]] inline Vectors best_vectors() noexcept {
#ifdef SHARDRUN_X86_VECTORS
  static const Vectors best = [] {
    unsigned a = 0;
    unsigned b = 0;
    unsigned c = 0;
    unsigned d = 0;
    const bool has_f16c = __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & (1U << 29U)) != 0;
    __builtin_cpu_init();
    if (!has_f16c || !__builtin_cpu_supports("avx2")) {
      return Vectors::baseline;
    }
    const bool has_512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    return has_512 ? Vectors::avx512 : Vectors::avx2;
  }();
  return best;
#else
  return Vectors::baseline;
#endif
}

/// Reduces `count` elements of a and b into `to`, and also into `also` unless it is null. A target is a or b itself, or
/// overlaps neither. Addresses can have any alignment.
using Reduction = void (*)(void* to, void* also, const void* a, const void* b, std::uint64_t count) noexcept;

namespace detail {

template <class Left, class Right, class To, std::uint32_t Code>
[[nodiscard]] Reduction reduction_for(Vectors vectors) noexcept {
#ifdef SHARDRUN_X86_VECTORS
  switch (vectors) {
    case Vectors::avx512: return avx512::reduce_vectors<Left, Right, To, Code>;
    case Vectors::avx2: return avx2::reduce_vectors<Left, Right, To, Code>;
    case Vectors::baseline: break;
  }
#else
  (void)vectors;
#endif
  return baseline::reduce_vectors<Left, Right, To, Code>;
}

/// Sums and products of integers must wrap around, so they are computed as unsigned.
template <class T>
using Wrapping = typename std::conditional_t<std::is_integral_v<T>, std::make_unsigned<T>, std::type_identity<T>>::type;

template <class Left, class Right, class To>
[[nodiscard]] Reduction reduction_of(std::uint32_t reduction, Vectors vectors) noexcept {
  switch (reduction) {
    case SR_REDUCE_SUM: return reduction_for<Wrapping<Left>, Wrapping<Right>, Wrapping<To>, SR_REDUCE_SUM>(vectors);
    case SR_REDUCE_PRODUCT:
      return reduction_for<Wrapping<Left>, Wrapping<Right>, Wrapping<To>, SR_REDUCE_PRODUCT>(vectors);
    case SR_REDUCE_MIN: return reduction_for<Left, Right, To, SR_REDUCE_MIN>(vectors);
    case SR_REDUCE_MAX: return reduction_for<Left, Right, To, SR_REDUCE_MAX>(vectors);
    default: return nullptr;
  }
}

/// Partial results of f16 and bf16 are floats.
template <class T>
using Partial = std::conditional_t<std::is_same_v<T, Half> || std::is_same_v<T, Bfloat>, float, T>;

/// The number as an element of type T, rounded if T is narrower.
template <class T>
T element_of(double number) noexcept {
  if constexpr (std::is_same_v<T, Half>) {
    return narrow_to_half(static_cast<float>(number));
  } else if constexpr (std::is_same_v<T, Bfloat>) {
    return narrow_to_bfloat(static_cast<float>(number));
  } else {
    return static_cast<T>(number);
  }
}

/// Calls `act` with a null pointer to the type of the dtype's elements. If the dtype is not known, returns a zero of
/// the result's type.
template <class Act>
auto with_type(std::uint32_t dtype, const Act& act) {
  switch (dtype) {
    case SR_DTYPE_F32: return act(static_cast<float*>(nullptr));
    case SR_DTYPE_F64: return act(static_cast<double*>(nullptr));
    case SR_DTYPE_F16: return act(static_cast<Half*>(nullptr));
    case SR_DTYPE_BF16: return act(static_cast<Bfloat*>(nullptr));
    case SR_DTYPE_I8: return act(static_cast<std::int8_t*>(nullptr));
    case SR_DTYPE_U8: return act(static_cast<std::uint8_t*>(nullptr));
    case SR_DTYPE_I32: return act(static_cast<std::int32_t*>(nullptr));
    case SR_DTYPE_U32: return act(static_cast<std::uint32_t*>(nullptr));
    case SR_DTYPE_I64: return act(static_cast<std::int64_t*>(nullptr));
    case SR_DTYPE_U64: return act(static_cast<std::uint64_t*>(nullptr));
    default: return decltype(act(static_cast<float*>(nullptr)))();
  }
}

}  // namespace detail

/// Returns null for an unknown code. f16 and bf16 are computed in float and rounded to nearest, ties to even.
[[nodiscard]] inline Reduction find_reduction(std::uint32_t dtype, std::uint32_t reduction,
                                              Vectors vectors = best_vectors()) noexcept {
  return detail::with_type(dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    return detail::reduction_of<T, T, T>(reduction, vectors);
  });
}

/// Reduces to[i] and from[i] into to[i], for `count` elements. Buffers do not overlap.
inline void reduce(std::uint32_t dtype, std::uint32_t reduction, void* to, const void* from,
                   std::uint64_t count) noexcept {
  if (const Reduction run = find_reduction(dtype, reduction)) {
    run(to, nullptr, to, from, count);
  }
}

/// Reduces the elements of any number of members, in their order: ((0 + 1) + 2) + …. Partial results of f16 and bf16
/// are floats, and only the last is rounded. The bits do not depend on an element's position.
class Reducer {
 public:
  Reducer() = default;
  /// For unknown codes it can be constructed, but `run` must not be called.
  Reducer(std::uint32_t dtype, std::uint32_t reduction, Vectors vectors = best_vectors()) noexcept
      : pair_(find_reduction(dtype, reduction, vectors)) {
    detail::with_type(dtype, [&](auto* type) {
      using T = std::remove_pointer_t<decltype(type)>;
      using Partial = detail::Partial<T>;
      element_bytes_ = sizeof(T);
      partial_bytes_ = sizeof(Partial);
      first_ = detail::reduction_of<T, T, Partial>(reduction, vectors);
      next_ = detail::reduction_of<Partial, T, Partial>(reduction, vectors);
      last_ = detail::reduction_of<Partial, T, T>(reduction, vectors);
      return true;
    });
  }

  /// Reduces `count` elements of two or more sources into one or more targets. `source_of(i)` and `target_of(i)` are
  /// their addresses. A target is one of the sources or overlaps none.
  template <class SourceOf, class TargetOf>
  void run(std::size_t sources, SourceOf source_of, std::size_t targets, TargetOf target_of,
           std::uint64_t count) const noexcept {
    // Works on tiles whose partial result stays in the L1 cache.
    const std::uint64_t tile = sources == 2 && targets <= 2 ? count : tile_bytes / partial_bytes_;
    for (std::uint64_t done = 0; done < count; done += tile) {
      const std::uint64_t offset = done * element_bytes_;
      run_tile(
          sources, [&](std::size_t i) { return from(source_of(i), offset); }, targets,
          [&](std::size_t i) { return to(target_of(i), offset); }, count - done < tile ? count - done : tile);
    }
  }

 private:
  static constexpr std::size_t tile_bytes = 8192;

  static const void* from(const void* base, std::uint64_t offset) noexcept {
    return static_cast<const unsigned char*>(base) + offset;
  }
  static void* to(void* base, std::uint64_t offset) noexcept { return static_cast<unsigned char*>(base) + offset; }

  /// Reads each source before it writes a target that can share the source's memory.
  template <class SourceOf, class TargetOf>
  void run_tile(std::size_t sources, SourceOf source_of, std::size_t targets, TargetOf target_of,
                std::uint64_t count) const noexcept {
    alignas(64) unsigned char partial[tile_bytes];
    void* const result = target_of(0);
    void* const also = targets > 1 ? target_of(1) : nullptr;
    if (sources == 2) {
      pair_(result, also, source_of(0), source_of(1), count);
    } else {
      first_(partial, nullptr, source_of(0), source_of(1), count);
      for (std::size_t i = 2; i + 1 < sources; ++i) {
        next_(partial, nullptr, partial, source_of(i), count);
      }
      last_(result, also, partial, source_of(sources - 1), count);
    }
    for (std::size_t i = 2; i < targets; ++i) {
      std::memcpy(target_of(i), result, count * element_bytes_);
    }
  }

  Reduction pair_ = nullptr;  ///< reduces two sources
  Reduction first_ = nullptr;
  Reduction next_ = nullptr;
  Reduction last_ = nullptr;
  std::uint64_t element_bytes_ = 1;
  std::uint64_t partial_bytes_ = 1;
};

}  // namespace shardrun::sdk
