#pragma once

#include <cstdint>

#include "core/base/philox.h"
#include "core/device/cpu/vec.h"
#include "core/device/cpu/views.h"

namespace shardrun::device::cpu::SHARDRUN_KERNEL_VARIANT {

using wvec = std::uint64_t __attribute__((vector_size(SHARDRUN_VECTOR_BYTES)));

/// Multiplies the lower 32-bit halves of 64-bit lanes. Compilers do not emit this instruction by themselves.
SHARDRUN_INLINE wvec multiply_low_halves(wvec a, wvec b) {
#if defined(__AVX512F__)
  // The full mask avoids a false warning of GCC 12 about its own _mm512_mul_epu32.
  return reinterpret_cast<wvec>(
      _mm512_maskz_mul_epu32(0xFF, reinterpret_cast<__m512i>(a), reinterpret_cast<__m512i>(b)));
#elif defined(__AVX2__)
  return reinterpret_cast<wvec>(_mm256_mul_epu32(reinterpret_cast<__m256i>(a), reinterpret_cast<__m256i>(b)));
#elif defined(__SSE2__)
  return reinterpret_cast<wvec>(_mm_mul_epu32(reinterpret_cast<__m128i>(a), reinterpret_cast<__m128i>(b)));
#else
  return (a & 0xFFFFFFFFU) * (b & 0xFFFFFFFFU);
#endif
}

struct WideProduct {
  uvec high;
  uvec low;
};
SHARDRUN_INLINE WideProduct multiply_wide(uvec a, std::uint32_t factor) {
  constexpr std::uint64_t low_half = 0xFFFFFFFFU;
  const wvec wide = reinterpret_cast<wvec>(a);
  const wvec factors = std::uint64_t{factor} - wvec{};
  const wvec even = multiply_low_halves(wide, factors);
  const wvec odd = multiply_low_halves(wide >> 32U, factors);
  return {reinterpret_cast<uvec>((even >> 32U) | (odd & ~low_half)),
          reinterpret_cast<uvec>((even & low_half) | (odd << 32U))};
}

/// One block of Philox4x32-10 (core/base/philox.h) in each vector lane.
struct PhiloxLanes {
  uvec words[4];

  SHARDRUN_INLINE void round(std::uint32_t key_0, std::uint32_t key_1) {
    const WideProduct p0 = multiply_wide(words[0], 0xD2511F53U);
    const WideProduct p1 = multiply_wide(words[2], 0xCD9E8D57U);
    words[0] = p1.high ^ words[1] ^ key_0;
    words[1] = p1.low;
    words[2] = p0.high ^ words[3] ^ key_1;
    words[3] = p0.low;
  }
};

/// The random stream of one dropout op. Whether an element is dropped depends only on seed, stream name, step, global
/// sample number and the element's place in the whole sample.
class DropoutStream {
 public:
  DropoutStream(const KernelCall& call, double rate)
      : step_(static_cast<std::uint32_t>(call.scalars.step)),
        rejected_(static_cast<std::uint32_t>(__builtin_ceil(rate * 0x1p24))),
        kept_(static_cast<float>(1 / (1 - rate))) {
    const PhiloxKey key = stream_key(call.scalars.seed, call.attributes.text("stream"));
    key_[0] = key[0];
    key_[1] = key[1];
  }

  /// Calls use(from, to, factors) for consecutive parts of a sample's elements [begin, end). Element from + i is to be
  /// multiplied by factors[i], which is 0 or 1 / (1 - rate).
  template <typename Use>
  SHARDRUN_INLINE void factors(std::int64_t sample, std::int64_t begin, std::int64_t end, const Use& use) const {
    float drawn[draws];
    while (begin < end) {
      const std::int64_t aligned = begin / 4 * 4;
      const std::int64_t stop = aligned + draws < end ? aligned + draws : end;
      draw(static_cast<std::uint64_t>(aligned / 4), static_cast<std::uint32_t>(sample), drawn);
      use(begin, stop, drawn + (begin - aligned));
      begin = stop;
    }
  }

 private:
  static constexpr int blocks = 2 * lanes;  // two vectors: the multiplications of one hide the latency of the other
  static constexpr int draws = 4 * blocks;

  SHARDRUN_INLINE PhiloxLanes counters(std::uint64_t first_block, std::uint32_t sample) const {
    std::uint32_t low[lanes];
    std::uint32_t high[lanes];
    for (int i = 0; i < lanes; ++i) {
      const std::uint64_t block = first_block + static_cast<std::uint64_t>(i);
      low[i] = static_cast<std::uint32_t>(block);
      high[i] = static_cast<std::uint32_t>(block >> 32U);
    }
    PhiloxLanes state = {};
    __builtin_memcpy(&state.words[0], low, sizeof(low));
    __builtin_memcpy(&state.words[1], high, sizeof(high));
    state.words[2] = sample - uvec{};
    state.words[3] = step_ - uvec{};
    return state;
  }

  void draw(std::uint64_t first_block, std::uint32_t sample, float* drawn) const {
    PhiloxLanes a = counters(first_block, sample);
    PhiloxLanes b = counters(first_block + lanes, sample);
    std::uint32_t key_0 = key_[0];
    std::uint32_t key_1 = key_[1];
    for (int round = 0; round < 10; ++round) {
      a.round(key_0, key_1);
      b.round(key_0, key_1);
      key_0 += 0x9E3779B9U;
      key_1 += 0xBB67AE85U;
    }
    float factors[4][blocks];
    for (int word = 0; word < 4; ++word) {
      store(factors[word], Whole{0}, decide(a.words[word]));
      store(factors[word], Whole{lanes}, decide(b.words[word]));
    }
    for (int i = 0; i < blocks; ++i) {
      for (int word = 0; word < 4; ++word) {
        drawn[4 * i + word] = factors[word][i];
      }
    }
  }

  /// Returns an element's factor: 1 / (1 - rate) if uniform(bits) >= rate (compared as integers), else 0.
  [[nodiscard]] SHARDRUN_INLINE vec decide(uvec bits) const {
    return (bits >> 8U) >= rejected_ - uvec{} ? splat(kept_) : vec{};
  }

  std::uint32_t key_[2];
  std::uint32_t step_;
  std::uint32_t rejected_;
  float kept_;
};

}  // namespace shardrun::device::cpu::SHARDRUN_KERNEL_VARIANT
