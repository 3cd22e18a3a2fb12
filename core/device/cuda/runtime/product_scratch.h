#pragma once

#include <cstdint>

#include "core/device/cuda/runtime/product_steps.h"

namespace shardrun::device::cuda {

/// Lays out the scratch of a list of steps.
class ProductScratch {
 public:
  /// Room that no other place shares.
  [[nodiscard]] Place add(std::int64_t bytes);
  /// The steps with their workspace, and the size of all.
  [[nodiscard]] ProductSteps finished(ProductSteps steps);

 private:
  std::int64_t end_ = 0;
};

}  // namespace shardrun::device::cuda
