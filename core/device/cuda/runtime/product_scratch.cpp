#include "core/device/cuda/runtime/product_scratch.h"

#include <algorithm>
#include <variant>

#include "core/memory/layout.h"

namespace shardrun::device::cuda {
namespace {

/// The largest that NVIDIA recommends (for Hopper). It holds the sums of parts of k, each as large as the result in
/// float32: the library makes such parts when the result alone gives a GPU too little to do at a time.
std::int64_t workspace_of(const ProductStep& step) {
  constexpr std::int64_t most = std::int64_t{32} << 20;
  constexpr std::int64_t most_parts = 16;
  constexpr std::int64_t least_k = 64;
  const Product& product = step.product;
  const std::int64_t parts = std::min(product.k / least_k, most_parts);
  return std::min(most, step.batch * product.m * product.n * static_cast<std::int64_t>(sizeof(float)) * parts);
}

}  // namespace

Place ProductScratch::add(std::int64_t bytes) {
  const Place place = {.tensor = Place::scratch, .byte = end_};
  end_ += static_cast<std::int64_t>(memory::align_up(static_cast<std::uint64_t>(bytes), ProductSteps::alignment));
  return place;
}

ProductSteps ProductScratch::finished(ProductSteps steps) {
  std::int64_t workspace = 0;
  for (const auto& step : steps.steps) {
    if (const auto* const product = std::get_if<ProductStep>(&step)) {
      workspace = std::max(workspace, workspace_of(*product));
    }
  }
  steps.workspace_bytes = static_cast<std::size_t>(workspace);
  steps.workspace = add(workspace);
  if (end_ > 0) {
    steps.scratch_bytes = static_cast<std::size_t>(end_) + ProductSteps::alignment - memory::alignment;
  }
  return steps;
}

}  // namespace shardrun::device::cuda
