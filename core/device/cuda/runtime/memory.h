#pragma once

#include <optional>

#include "core/device/cuda/runtime/gpu.h"
#include "core/device/cuda/runtime/virtual_memory.h"
#include "core/device/memory.h"

namespace shardrun::device::cuda {

/// An arena in the memory of a GPU: virtual memory where the GPU has it and gives it, else cudaMalloc's. It is filled
/// with a pattern that is NaN in every type, so that the pages that were written can be counted, and what nobody has
/// written shows in results.
class CudaMemory final : public Memory {
 public:
  /// `gpu` outlives it. Throws Error{io} when the GPU has not that much.
  CudaMemory(const Gpu& gpu, std::uint64_t bytes);
  ~CudaMemory() override;

  /// 0 after a failure of the GPU.
  [[nodiscard]] std::uint64_t touched_bytes() const override;

 private:
  void free() noexcept;

  const Gpu& gpu_;
  std::optional<VirtualMemory> virtual_;
};

}  // namespace shardrun::device::cuda
