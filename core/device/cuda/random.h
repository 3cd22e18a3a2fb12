#pragma once

#include <cstdint>

#include "core/base/philox.h"
#include "core/device/cuda/values.h"

namespace shardrun::device::cuda {

/// The random stream of one dropout op, with the same numbers as on other devices. Whether an element is dropped
/// depends only on seed, stream name, step, global sample number and the element's place in the whole sample.
class DropoutStream {
 public:
  /// The factors of four consecutive elements.
  struct Factors {
    float of[4];
  };

  /// A stream that drops nothing.
  DropoutStream() = default;
  DropoutStream(const KernelCall& call, double rate)
      : step_(static_cast<std::uint32_t>(call.scalars.step)),
        rejected_(static_cast<std::uint32_t>(__builtin_ceil(rate * 0x1p24))),
        kept_(static_cast<float>(1 / (1 - rate))) {
    const PhiloxKey key = stream_key(call.scalars.seed, call.attributes.text("stream"));
    key_0_ = key[0];
    key_1_ = key[1];
  }

  [[nodiscard]] SHARDRUN_ON_BOTH bool drops() const { return rejected_ != 0; }

  /// The factors of elements 4 number to 4 number + 3 of a sample. Each is 0 or 1 / (1 - rate).
  [[nodiscard]] SHARDRUN_ON_DEVICE Factors factors(std::int64_t sample, std::int64_t number) const {
    std::uint32_t words[] = {static_cast<std::uint32_t>(number), static_cast<std::uint32_t>(number >> 32),
                             static_cast<std::uint32_t>(sample), step_};
    std::uint32_t key_0 = key_0_;
    std::uint32_t key_1 = key_1_;
    SHARDRUN_NOT_UNROLLED for (int round = 0; round < 10; ++round) {  // Philox4x32-10: core/base/philox.h
      const std::uint64_t p0 = std::uint64_t{0xD2511F53U} * words[0];
      const std::uint64_t p1 = std::uint64_t{0xCD9E8D57U} * words[2];
      words[0] = static_cast<std::uint32_t>(p1 >> 32) ^ words[1] ^ key_0;
      words[1] = static_cast<std::uint32_t>(p1);
      words[2] = static_cast<std::uint32_t>(p0 >> 32) ^ words[3] ^ key_1;
      words[3] = static_cast<std::uint32_t>(p0);
      key_0 += 0x9E3779B9U;
      key_1 += 0xBB67AE85U;
    }
    Factors found;
    for (int i = 0; i < 4; ++i) {
      found.of[i] = (words[i] >> 8U) >= rejected_ ? kept_ : 0.0F;
    }
    return found;
  }
  /// The factor of one element.
  [[nodiscard]] SHARDRUN_ON_DEVICE float factor(std::int64_t sample, std::int64_t index) const {
    const Factors four = factors(sample, index / 4);
    const int place = static_cast<int>(index % 4);  // an array with a variable index would not stay in registers
    return place == 0 ? four.of[0] : place == 1 ? four.of[1] : place == 2 ? four.of[2] : four.of[3];
  }

 private:
  std::uint32_t key_0_ = 0;
  std::uint32_t key_1_ = 0;
  std::uint32_t step_ = 0;
  std::uint32_t rejected_ = 0;
  float kept_ = 1;
};

}  // namespace shardrun::device::cuda
