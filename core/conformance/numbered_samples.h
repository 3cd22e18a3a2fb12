#pragma once

#include <cstdint>
#include <string>

#include "core/data/dataset.h"
#include "core/device/elements.h"

namespace shardrun::conformance {

/// Samples that are computed from their number. Elements are integers below `limit`, or reals in [-1, 1).
class NumberedSamples final : public data::Dataset {
 public:
  explicit NumberedSamples(std::int32_t limit) : limit_(limit) {}

  [[nodiscard]] workload::DataShape shape() const override { return {}; }
  [[nodiscard]] std::int64_t evaluation_samples() const override { return 0; }
  [[nodiscard]] std::int64_t tokens_per_sample() const override { return 1; }
  void check(int) const override {}
  [[nodiscard]] std::string describe() const override { return "numbered samples"; }

  void fill_training(std::uint64_t seed, std::int64_t first, const device::TensorView& inputs,
                     const device::TensorView& targets) const override {
    fill(seed, first, inputs);
    fill(seed + 1, first, targets);
  }
  void fill_evaluation(std::int64_t first, const device::TensorView& inputs,
                       const device::TensorView& targets) const override {
    fill(101, first, inputs);
    fill(102, first, targets);
  }

 private:
  void fill(std::uint64_t stream, std::int64_t first, const device::TensorView& view) const {
    const std::int64_t columns = view.elements() / view.shape[0];
    for (std::int64_t i = 0; i < view.elements(); ++i) {
      const auto sample = static_cast<std::uint64_t>(first + i / columns);
      const std::uint64_t number = mixed(mixed(mixed(stream) + sample) + static_cast<std::uint64_t>(i % columns));
      const double real = static_cast<double>(number % 2048) / 1024 - 1;
      const auto integer = static_cast<double>(number % static_cast<std::uint64_t>(limit_));
      double value = graph::is_real(view.dtype) ? real : integer;
      device::write_elements(view, i, {&value, 1});
    }
  }

  /// The mixing function of SplitMix64 (Steele, Lea & Flood 2014).
  static std::uint64_t mixed(std::uint64_t state) {
    state += 0x9e3779b97f4a7c15U;
    state = (state ^ (state >> 30U)) * 0xbf58476d1ce4e5b9U;
    state = (state ^ (state >> 27U)) * 0x94d049bb133111ebU;
    return state ^ (state >> 31U);
  }

  std::int32_t limit_;
};

}  // namespace shardrun::conformance
