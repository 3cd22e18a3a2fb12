#pragma once

#include <cstdint>

#include "core/base/philox.h"
#include "core/device/device.h"

namespace shardrun::device::reference {

/// The random stream of one dropout op, with random access (counter-based: Salmon et al. 2011, Philox). Whether an
/// element is dropped depends only on seed, stream name, step, global sample number and the element's place in the
/// whole sample, not on how the batch is split.
class Dropout {
 public:
  Dropout(const Scalars& scalars, const std::string& stream, double rate)
      : key_(stream_key(scalars.seed, stream)), step_(scalars.step), rate_(rate) {}

  /// The factor of element `index` of the sample: 0, or 1 / (1 - rate).
  [[nodiscard]] double factor(std::int64_t sample, std::int64_t index) const {
    if (rate_ == 0) {
      return 1;
    }
    const std::int64_t block = index / 4;
    const PhiloxBlock bits = philox({low(block), high(block), low(sample), low(step_)}, key_);
    const double draw = uniform(bits[static_cast<std::size_t>(index % 4)]);
    return draw >= rate_ ? 1 / (1 - rate_) : 0;
  }

 private:
  static std::uint32_t low(std::int64_t value) { return static_cast<std::uint32_t>(value); }
  static std::uint32_t high(std::int64_t value) {
    return static_cast<std::uint32_t>(static_cast<std::uint64_t>(value) >> 32U);
  }

  PhiloxKey key_;
  std::int64_t step_;
  double rate_;
};

}  // namespace shardrun::device::reference
