#pragma once

#include <cstddef>
#include <cstdint>

#if defined(__SSE2__)
#include <immintrin.h>
#endif

#include "core/device/cpu/variant.h"

/// Vectors as wide as this variant's instruction set, in the vector extension of GCC and Clang, and loops over them.
/// The number of elements alone decides the order in which they are combined, so results do not depend on threads.
namespace shardrun::device::cpu::SHARDRUN_KERNEL_VARIANT {

#if defined(__AVX512F__)
#define SHARDRUN_VECTOR_BYTES 64
#elif defined(__AVX2__)
#define SHARDRUN_VECTOR_BYTES 32
#else
#define SHARDRUN_VECTOR_BYTES 16
#endif

using vec = float __attribute__((vector_size(SHARDRUN_VECTOR_BYTES)));
using ivec = std::int32_t __attribute__((vector_size(SHARDRUN_VECTOR_BYTES)));
using uvec = std::uint32_t __attribute__((vector_size(SHARDRUN_VECTOR_BYTES)));
using halfvec = float __attribute__((vector_size(SHARDRUN_VECTOR_BYTES / 2)));
using dvec = double __attribute__((vector_size(SHARDRUN_VECTOR_BYTES)));
using shortvec = std::uint16_t __attribute__((vector_size(SHARDRUN_VECTOR_BYTES / 2)));

inline constexpr int lanes = SHARDRUN_VECTOR_BYTES / 4;

#define SHARDRUN_INLINE [[gnu::always_inline]] inline

/// The place of a vector in an array: a whole vector (`Whole`), or the elements left at the end (`Part`).
struct Whole {
  std::int64_t begin;
};
struct Part {
  std::int64_t begin;
  std::int64_t count;
};

/// Calls body(at) for the vectors of [begin, end): first the whole ones, then the elements left.
template <typename Body>
SHARDRUN_INLINE void vectors(std::int64_t begin, std::int64_t end, const Body& body) {
  std::int64_t i = begin;
  for (; i + lanes <= end; i += lanes) {
    body(Whole{i});
  }
  if (i < end) {
    body(Part{i, end - i});
  }
}

SHARDRUN_INLINE ivec lane_numbers() {
  ivec v = {};
  for (int i = 0; i < lanes; ++i) {
    v[i] = i;
  }
  return v;
}

SHARDRUN_INLINE vec splat(float value) { return value - vec{}; }

SHARDRUN_INLINE vec load(const float* from, Whole at) {
  vec v;
  __builtin_memcpy(&v, from + at.begin, sizeof(v));
  return v;
}
SHARDRUN_INLINE void store(float* to, Whole at, vec v) { __builtin_memcpy(to + at.begin, &v, sizeof(v)); }

/// Loads the elements; the lanes past the end are zero.
SHARDRUN_INLINE vec load_by_copy(const float* from, Part at) {
  vec v = {};
  __builtin_memcpy(&v, from + at.begin, static_cast<std::size_t>(at.count) * sizeof(float));
  return v;
}
SHARDRUN_INLINE void store_by_copy(float* to, Part at, vec v) {
  __builtin_memcpy(to + at.begin, &v, static_cast<std::size_t>(at.count) * sizeof(float));
}

// memcpy of a number of bytes known only at run time is a function call. Masked loads and stores avoid it.
#if defined(__AVX512F__)
SHARDRUN_INLINE vec load_by_mask(const float* from, Part at) {
  return reinterpret_cast<vec>(_mm512_maskz_loadu_ps(static_cast<__mmask16>((1U << at.count) - 1U), from + at.begin));
}
SHARDRUN_INLINE void store_by_mask(float* to, Part at, vec v) {
  const auto mask = static_cast<__mmask16>((1U << at.count) - 1U);
  _mm512_mask_storeu_ps(to + at.begin, mask, reinterpret_cast<__m512>(v));
}
#elif defined(__AVX2__)
SHARDRUN_INLINE __m256i mask_of(Part at) {
  return reinterpret_cast<__m256i>(lane_numbers() < static_cast<std::int32_t>(at.count));
}
SHARDRUN_INLINE vec load_by_mask(const float* from, Part at) {
  return reinterpret_cast<vec>(_mm256_maskload_ps(from + at.begin, mask_of(at)));
}
SHARDRUN_INLINE void store_by_mask(float* to, Part at, vec v) {
  _mm256_maskstore_ps(to + at.begin, mask_of(at), reinterpret_cast<__m256>(v));
}
#else
SHARDRUN_INLINE vec load_by_mask(const float* from, Part at) { return load_by_copy(from, at); }
SHARDRUN_INLINE void store_by_mask(float* to, Part at, vec v) { store_by_copy(to, at, v); }
#endif

SHARDRUN_INLINE vec load(const float* from, Part at) {
  return __builtin_constant_p(at.count) ? load_by_copy(from, at) : load_by_mask(from, at);
}
SHARDRUN_INLINE void store(float* to, Part at, vec v) {
  __builtin_constant_p(at.count) ? store_by_copy(to, at, v) : store_by_mask(to, at, v);
}

/// Converts bfloat16 numbers to float32.
SHARDRUN_INLINE vec widen(shortvec bfloats) {
#if defined(__AVX512F__)
  // Compilers do not emit this instruction by themselves. The full mask avoids a false warning of GCC 12.
  const auto wide = reinterpret_cast<uvec>(_mm512_maskz_cvtepu16_epi32(0xFFFF, reinterpret_cast<__m256i>(bfloats)));
#else
  const uvec wide = __builtin_convertvector(bfloats, uvec);
#endif
  return __builtin_bit_cast(vec, wide << 16U);
}

/// Converts numbers of IEEE half precision to float32.
SHARDRUN_INLINE vec widen_halves(shortvec halves) {
#if defined(__AVX512F__)
  return reinterpret_cast<vec>(_mm512_maskz_cvtph_ps(0xFFFF, reinterpret_cast<__m256i>(halves)));
#elif defined(__F16C__)
  return reinterpret_cast<vec>(_mm256_cvtph_ps(reinterpret_cast<__m128i>(halves)));
#else
  const uvec bits = __builtin_convertvector(halves, uvec);
  const uvec magnitude = (bits & 0x7FFFU) << 13U;
  constexpr float exponents = 0x1p112F;  // the difference of the types' exponents
  const uvec finite = __builtin_bit_cast(uvec, __builtin_bit_cast(vec, magnitude) * exponents);
  const uvec value = magnitude >= (0x7C00U << 13U) ? magnitude | 0x7F800000U : finite;
  return __builtin_bit_cast(vec, value | ((bits & 0x8000U) << 16U));
#endif
}

/// Rounds to bfloat16, to nearest with ties to even. NaN stays NaN.
SHARDRUN_INLINE shortvec narrow(vec v) {
  const uvec bits = __builtin_bit_cast(uvec, v);
  const uvec rounded = (bits + 0x7FFFU + ((bits >> 16U) & 1U)) >> 16U;
  const uvec low_halves = v != v ? (bits >> 16U) | 0x40U : rounded;
#if defined(__AVX512F__)
  return reinterpret_cast<shortvec>(_mm512_maskz_cvtepi32_epi16(0xFFFF, reinterpret_cast<__m512i>(low_halves)));
#else
  return __builtin_convertvector(low_halves, shortvec);
#endif
}

/// Bfloat16 numbers in memory. A load widens to float32, and a store rounds.
struct Bfloats {
  std::uint16_t* data;
};

SHARDRUN_INLINE vec load(Bfloats from, Whole at) {
  shortvec v;
  __builtin_memcpy(&v, from.data + at.begin, sizeof(v));
  return widen(v);
}
SHARDRUN_INLINE vec load(Bfloats from, Part at) {
  shortvec v = {};
  __builtin_memcpy(&v, from.data + at.begin, static_cast<std::size_t>(at.count) * sizeof(std::uint16_t));
  return widen(v);
}
SHARDRUN_INLINE void store(Bfloats to, Whole at, vec v) {
  const shortvec rounded = narrow(v);
  __builtin_memcpy(to.data + at.begin, &rounded, sizeof(rounded));
}
SHARDRUN_INLINE void store(Bfloats to, Part at, vec v) {
  const shortvec rounded = narrow(v);
  __builtin_memcpy(to.data + at.begin, &rounded, static_cast<std::size_t>(at.count) * sizeof(std::uint16_t));
}

/// Numbers of IEEE half precision in memory. A load widens to float32.
struct Halves16 {
  const std::uint16_t* data;
};

SHARDRUN_INLINE vec load(Halves16 from, Whole at) {
  shortvec v;
  __builtin_memcpy(&v, from.data + at.begin, sizeof(v));
  return widen_halves(v);
}
SHARDRUN_INLINE vec load(Halves16 from, Part at) {
  shortvec v = {};
  __builtin_memcpy(&v, from.data + at.begin, static_cast<std::size_t>(at.count) * sizeof(std::uint16_t));
  return widen_halves(v);
}

/// Real numbers in memory whose type, float32 or bfloat16, is known only at run time. Kernels are templates over their
/// pointer type: `float*`, or `Reals` if any operand or result is bfloat16. Both compute in float32.
struct Reals {
  std::byte* data;
  bool bfloat;

  SHARDRUN_INLINE Reals operator+(std::int64_t elements) const { return {data + elements * (bfloat ? 2 : 4), bfloat}; }
  [[nodiscard]] SHARDRUN_INLINE float* floats() const { return reinterpret_cast<float*>(data); }
  [[nodiscard]] SHARDRUN_INLINE Bfloats bfloats() const { return {reinterpret_cast<std::uint16_t*>(data)}; }
};

template <typename At>
SHARDRUN_INLINE vec load(Reals from, At at) {
  return from.bfloat ? load(from.bfloats(), at) : load(from.floats(), at);
}
template <typename At>
SHARDRUN_INLINE void store(Reals to, At at, vec v) {
  to.bfloat ? store(to.bfloats(), at, v) : store(to.floats(), at, v);
}

/// Read or write one element.
SHARDRUN_INLINE float get(const float* from, std::int64_t index) { return from[index]; }
SHARDRUN_INLINE void put(float* to, std::int64_t index, float value) { to[index] = value; }
SHARDRUN_INLINE float get(Reals from, std::int64_t index) { return load(from, Part{index, 1})[0]; }
SHARDRUN_INLINE void put(Reals to, std::int64_t index, float value) { store(to, Part{index, 1}, splat(value)); }

SHARDRUN_INLINE vec square_root(vec v) {
  float each[lanes];
  __builtin_memcpy(each, &v, sizeof(v));
  for (int i = 0; i < lanes; ++i) {
    each[i] = __builtin_sqrtf(each[i]);
  }
  __builtin_memcpy(&v, each, sizeof(v));
  return v;
}

/// v in the lanes with elements, `other` in the lanes past the end.
SHARDRUN_INLINE vec within(Whole, vec v, float) { return v; }
SHARDRUN_INLINE vec within(Part at, vec v, float other) {
  return lane_numbers() < static_cast<std::int32_t>(at.count) ? v : splat(other);
}

using smallvec = float __attribute__((vector_size(16)));

/// The two halves of a vector.
template <typename Half, typename Vector>
struct Halves {
  SHARDRUN_INLINE explicit Halves(Vector v) {
    __builtin_memcpy(&low, &v, sizeof(low));
    __builtin_memcpy(&high, reinterpret_cast<const char*>(&v) + sizeof(low), sizeof(high));
  }
  Half low;
  Half high;
};

/// Combines all lanes into one number, by combining the two halves of the vector again and again.
template <typename Combine>
SHARDRUN_INLINE float folded(vec v, const Combine& combine) {
#if SHARDRUN_VECTOR_BYTES == 64
  const Halves<halfvec, vec> of_16(v);
  const Halves<smallvec, halfvec> of_8(combine(of_16.low, of_16.high));
  const smallvec four = combine(of_8.low, of_8.high);
#elif SHARDRUN_VECTOR_BYTES == 32
  const Halves<smallvec, vec> of_8(v);
  const smallvec four = combine(of_8.low, of_8.high);
#else
  const smallvec four = v;
#endif
  const smallvec two = combine(four, smallvec{four[2], four[3], four[2], four[3]});
  return combine(two, smallvec{two[1], two[1], two[1], two[1]})[0];
}

SHARDRUN_INLINE float sum(vec v) {
  return folded(v, [](auto a, auto b) { return a + b; });
}

template <int... number>
struct Lanes {};
#if SHARDRUN_VECTOR_BYTES == 64
using AllLanes = Lanes<0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15>;
#elif SHARDRUN_VECTOR_BYTES == 32
using AllLanes = Lanes<0, 1, 2, 3, 4, 5, 6, 7>;
#else
using AllLanes = Lanes<0, 1, 2, 3>;
#endif

/// Takes two of every four lanes of a and b, the first or the `last` two, and puts `unit` lanes of a and b in turn.
template <int unit, bool last, typename Vector, int... lane>
SHARDRUN_INLINE Vector units_in_turn(Vector a, Vector b, Lanes<lane...>) {
  return __builtin_shufflevector(
      a, b, (lane % 4 / unit % 2 * lanes + lane / 4 * 4 + last * 2 + lane % 4 / (2 * unit) + lane % unit)...);
}

/// a, followed by b, consists of groups of four lanes. The result has the groups with even or with odd numbers.
template <bool odd, typename Vector, int... lane>
SHARDRUN_INLINE Vector every_other_four(Vector a, Vector b, Lanes<lane...>) {
  return __builtin_shufflevector(a, b, (lane / 4 * 8 + odd * 4 + lane % 4)...);
}

/// Lane j of vector i becomes lane i of vector j. There are as many vectors as lanes.
template <typename Vector>
SHARDRUN_INLINE void transpose(Vector* rows) {
  constexpr AllLanes all;
  for (int i = 0; i < lanes; i += 4) {  // squares of four by four
    const Vector ab_first = units_in_turn<1, false>(rows[i], rows[i + 1], all);
    const Vector ab_last = units_in_turn<1, true>(rows[i], rows[i + 1], all);
    const Vector cd_first = units_in_turn<1, false>(rows[i + 2], rows[i + 3], all);
    const Vector cd_last = units_in_turn<1, true>(rows[i + 2], rows[i + 3], all);
    rows[i] = units_in_turn<2, false>(ab_first, cd_first, all);
    rows[i + 1] = units_in_turn<2, true>(ab_first, cd_first, all);
    rows[i + 2] = units_in_turn<2, false>(ab_last, cd_last, all);
    rows[i + 3] = units_in_turn<2, true>(ab_last, cd_last, all);
  }
  constexpr int squares = lanes / 4;
  for (int round = 1; round < squares; round *= 2) {
    for (int i = 0; i < 4; ++i) {
      Vector from[squares];
      for (int k = 0; k < squares; ++k) {
        from[k] = rows[4 * k + i];
      }
      for (int k = 0; k < squares / 2; ++k) {
        rows[4 * k + i] = every_other_four<false>(from[2 * k], from[2 * k + 1], all);
        rows[4 * (k + squares / 2) + i] = every_other_four<true>(from[2 * k], from[2 * k + 1], all);
      }
    }
  }
}

/// Every 2 * run lanes of the result are the sum of a's two halves there, followed by the sum of b's.
template <int run, int... lane>
SHARDRUN_INLINE vec add_halves(vec a, vec b, Lanes<lane...>) {
  constexpr int b_first = lanes - run;
  return __builtin_shufflevector(a, b, (lane % (2 * run) < run ? lane : lane + b_first)...) +
         __builtin_shufflevector(a, b, (lane % (2 * run) < run ? lane + run : lane + lanes)...);
}

/// Lane i of the result is the sum of the lanes of of[i]. There are 2 * run vectors, which are overwritten. The
/// lanes are added in the order of sum().
template <int run = lanes / 2>
SHARDRUN_INLINE vec sums_of_lanes(vec* of) {
  for (int i = 0; i < run; ++i) {
    of[i] = add_halves<run>(of[i], of[i + run], AllLanes{});
  }
  if constexpr (run == 1) {
    return of[0];
  } else {
    return sums_of_lanes<run / 2>(of);
  }
}

/// The larger of two numbers, or NaN if one is NaN.
SHARDRUN_INLINE vec larger(vec a, vec b) { return ((b > a) | (b != b)) ? b : a; }

SHARDRUN_INLINE float largest(vec v) {
  return folded(v, [](auto a, auto b) { return ((b > a) | (b != b)) ? b : a; });
}

inline constexpr float lowest = -__builtin_huge_valf();

/// Σ term(at) over [0, n), in four interleaved partial sums.
template <typename Term>
SHARDRUN_INLINE float sum_of(std::int64_t n, const Term& term) {
  vec s0 = {};
  vec s1 = {};
  vec s2 = {};
  vec s3 = {};
  std::int64_t i = 0;
  for (; i + 4 * lanes <= n; i += 4 * lanes) {
    s0 += term(Whole{i});
    s1 += term(Whole{i + lanes});
    s2 += term(Whole{i + 2 * lanes});
    s3 += term(Whole{i + 3 * lanes});
  }
  for (; i + lanes <= n; i += lanes) {
    s0 += term(Whole{i});
  }
  if (i < n) {
    const Part rest{i, n - i};
    s1 += within(rest, term(rest), 0);
  }
  return sum((s0 + s1) + (s2 + s3));
}

/// Two sums over the same elements: term(at) returns one vector for each sum.
struct VecPair {
  vec first;
  vec second;
};
struct FloatPair {
  float first;
  float second;
};
template <typename Term>
SHARDRUN_INLINE FloatPair sums_of(std::int64_t n, const Term& term) {
  VecPair a = {};
  VecPair b = {};
  const auto add = [](VecPair& to, VecPair terms) {
    to.first += terms.first;
    to.second += terms.second;
  };
  std::int64_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    add(a, term(Whole{i}));
    add(b, term(Whole{i + lanes}));
  }
  for (; i + lanes <= n; i += lanes) {
    add(a, term(Whole{i}));
  }
  if (i < n) {
    const Part rest{i, n - i};
    const VecPair terms = term(rest);
    add(b, {within(rest, terms.first, 0), within(rest, terms.second, 0)});
  }
  return {sum(a.first + b.first), sum(a.second + b.second)};
}

/// The largest of term(at) over [0, n); NaN if one is NaN; -inf if n is 0.
template <typename Term>
SHARDRUN_INLINE float largest_of(std::int64_t n, const Term& term) {
  vec a = splat(lowest);
  vec b = a;
  std::int64_t i = 0;
  for (; i + 2 * lanes <= n; i += 2 * lanes) {
    a = larger(a, term(Whole{i}));
    b = larger(b, term(Whole{i + lanes}));
  }
  for (; i + lanes <= n; i += lanes) {
    a = larger(a, term(Whole{i}));
  }
  if (i < n) {
    const Part rest{i, n - i};
    b = larger(b, within(rest, term(rest), lowest));
  }
  return largest(larger(a, b));
}

}  // namespace shardrun::device::cpu::SHARDRUN_KERNEL_VARIANT
