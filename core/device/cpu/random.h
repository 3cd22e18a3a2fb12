#pragma once

#include <cstdint>

#include "core/base/philox.h"
#include "core/device/cpu/views.h"

namespace shardrun::device::cpu::SHARDRUN_KERNEL_VARIANT {

/// The random stream of one dropout op: core/base/philox.h, many blocks at a time. An element's fate depends on seed,
/// stream name, step, global sample and its global place within the sample alone.
class DropoutStream {
 public:
  static constexpr int blocks = 16;
  static constexpr std::int64_t draws = 4 * blocks;

  DropoutStream(const KernelCall& call, double rate)
      : step_(static_cast<std::uint32_t>(call.scalars.step)),
        rejected_(static_cast<std::uint32_t>(__builtin_ceil(rate * 0x1p24))),
        kept_(static_cast<float>(1 / (1 - rate))) {
    const PhiloxKey key = stream_key(call.scalars.seed, call.attributes.text("stream"));
    key_[0] = key[0];
    key_[1] = key[1];
  }

  /// Calls use(from, to, factors) for stretches that cover [begin, end) of the elements of a sample: element
  /// from + i is to be multiplied by factors[i], which is 0 or 1 / (1 - rate).
  template <typename Use>
  void factors(std::int64_t sample, std::int64_t begin, std::int64_t end, const Use& use) const {
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
  /// Philox4x32-10 on `blocks` counters at once, and what its bits mean.
  void draw(std::uint64_t first_block, std::uint32_t sample, float* drawn) const {
    std::uint32_t c0[blocks];
    std::uint32_t c1[blocks];
    std::uint32_t c2[blocks];
    std::uint32_t c3[blocks];
    for (int i = 0; i < blocks; ++i) {
      const std::uint64_t block = first_block + static_cast<std::uint64_t>(i);
      c0[i] = static_cast<std::uint32_t>(block);
      c1[i] = static_cast<std::uint32_t>(block >> 32U);
      c2[i] = sample;
      c3[i] = step_;
    }
    std::uint32_t k0 = key_[0];
    std::uint32_t k1 = key_[1];
    for (int round = 0; round < 10; ++round) {
      for (int i = 0; i < blocks; ++i) {
        const std::uint64_t p0 = std::uint64_t{0xD2511F53U} * c0[i];
        const std::uint64_t p1 = std::uint64_t{0xCD9E8D57U} * c2[i];
        c0[i] = static_cast<std::uint32_t>(p1 >> 32U) ^ c1[i] ^ k0;
        c1[i] = static_cast<std::uint32_t>(p1);
        c2[i] = static_cast<std::uint32_t>(p0 >> 32U) ^ c3[i] ^ k1;
        c3[i] = static_cast<std::uint32_t>(p0);
      }
      k0 += 0x9E3779B9U;
      k1 += 0xBB67AE85U;
    }
    for (int i = 0; i < blocks; ++i) {
      drawn[4 * i] = factor(c0[i]);
      drawn[4 * i + 1] = factor(c1[i]);
      drawn[4 * i + 2] = factor(c2[i]);
      drawn[4 * i + 3] = factor(c3[i]);
    }
  }

  /// uniform(bits) >= rate, in integers.
  [[nodiscard]] float factor(std::uint32_t bits) const { return (bits >> 8U) >= rejected_ ? kept_ : 0.0F; }

  std::uint32_t key_[2];
  std::uint32_t step_;
  std::uint32_t rejected_;
  float kept_;
};

}  // namespace shardrun::device::cpu::SHARDRUN_KERNEL_VARIANT
