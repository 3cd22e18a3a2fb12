#pragma once

#include <cstdint>

#include "core/device/cpu/vec.h"
#include "core/device/hash.h"

/// Hashes of the elements that a kernel reads and of those that it writes in their place (Scalars::hashes), from
/// vectors that it has in registers anyway. core/device/hash.h defines the hash; its words are the elements.
namespace shardrun::device::cpu::SHARDRUN_KERNEL_VARIANT {

using longvec = std::uint64_t __attribute__((vector_size(SHARDRUN_VECTOR_BYTES)));

/// The products of the lanes with even numbers.
SHARDRUN_INLINE longvec even_products(uvec a, uvec b) {
#if defined(__AVX512F__)
  // The mask of all lanes avoids a false warning of GCC 12.
  return reinterpret_cast<longvec>(
      _mm512_maskz_mul_epu32(0xFF, reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b)));
#elif defined(__AVX2__)
  return reinterpret_cast<longvec>(_mm256_mul_epu32(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b)));
#elif defined(__SSE2__)
  return reinterpret_cast<longvec>(_mm_mul_epu32(reinterpret_cast<__m128i>(a), reinterpret_cast<__m128i>(b)));
#else
  constexpr std::uint64_t low = 0xFFFF'FFFF;
  return (__builtin_bit_cast(longvec, a) & low) * (__builtin_bit_cast(longvec, b) & low);
#endif
}

SHARDRUN_INLINE uvec odd_as_even(uvec v) {
  return __builtin_bit_cast(uvec, __builtin_bit_cast(longvec, v) >> std::uint64_t{32});
}

/// The weights of the elements of a vector.
struct Weights {
  SHARDRUN_INLINE explicit Weights(std::int64_t begin) {
    const uvec places = __builtin_bit_cast(uvec, lane_numbers()) + static_cast<std::uint32_t>(begin);
    uvec mixed = (places * hash_weights::first) & hash_weights::mask;
    mixed ^= mixed >> hash_weights::shift;
    even = mixed * hash_weights::second | std::uint32_t{1};
    odd = odd_as_even(even);
  }

  uvec even;  ///< lanes with odd numbers do not count
  uvec odd;   ///< likewise, of the elements in lanes with odd numbers
};

/// Of `pairs` operands and the results in their places. If they are not `asked` for, nothing is computed.
template <int pairs, bool asked>
class InPlaceSums {
 public:
  /// REQUIRES: lanes of `read` past the end are zero.
  template <typename At>
  SHARDRUN_INLINE void add(const Weights& weights, At at, int pair, vec read, vec written) {
    if constexpr (asked) {
      add_to(read_[pair], weights, read);
      add_to(written_[pair], weights, within(at, written, 0));
    }
  }

  /// Adds this thread's sums to the others'.
  SHARDRUN_INLINE void give(InPlaceHash* hashes) const {
    if constexpr (asked) {
      for (int pair = 0; pair < pairs; ++pair) {
        __atomic_fetch_add(&hashes[pair].read, total(read_[pair]), __ATOMIC_RELAXED);
        __atomic_fetch_add(&hashes[pair].written, total(written_[pair]), __ATOMIC_RELAXED);
      }
    }
  }

 private:
  SHARDRUN_INLINE static void add_to(longvec& sum, const Weights& weights, vec v) {
    const uvec bits = __builtin_bit_cast(uvec, v);
    sum += even_products(bits, weights.even) + even_products(odd_as_even(bits), weights.odd);
  }
  SHARDRUN_INLINE static std::uint64_t total(longvec sum) {
    std::uint64_t all = 0;
    for (int i = 0; i < lanes / 2; ++i) {
      all += sum[i];
    }
    return all;
  }

  longvec read_[pairs] = {};
  longvec written_[pairs] = {};
};

}  // namespace shardrun::device::cpu::SHARDRUN_KERNEL_VARIANT
