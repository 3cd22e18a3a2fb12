#pragma once

#include "core/device/cuda/runtime/gpu.h"
#include "core/device/memory.h"

namespace shardrun::device::cuda {

/// An arena in the memory of a GPU. It is filled with a pattern that is NaN in every type, so that the pages that were
/// written can be counted, and what nobody has written shows in results.
class CudaMemory final : public Memory {
 public:
  /// `gpu` outlives it. Throws Error{io} when the GPU has not that much.
  CudaMemory(const Gpu& gpu, std::uint64_t bytes);
  ~CudaMemory() override;

  /// 0 after a failure of the GPU.
  [[nodiscard]] std::uint64_t touched_bytes() const override;

 private:
  const Gpu& gpu_;
};

}  // namespace shardrun::device::cuda
