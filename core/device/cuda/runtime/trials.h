#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>
#include <span>
#include <vector>

#include "core/device/cuda/runtime/gpu.h"

/// Times work on a GPU before a job begins.
namespace shardrun::device::cuda {

struct TrialBuffer {
  std::size_t bytes = 0;
  std::size_t alignment = 256;  ///< of its address, and no more than this if it is below 256
  std::byte* data = nullptr;    ///< set by TrialMemory; null if it has no bytes
};

/// Memory for trials. Its numbers lie around 0 and have varying bits, as a job's do: the power that products take, and
/// so their time, depends on them.
class TrialMemory {
 public:
  /// `gpu` outlives it. Throws Error{io} when the GPU has not that much.
  TrialMemory(const Gpu& gpu, std::span<TrialBuffer> buffers);
  ~TrialMemory();
  TrialMemory(const TrialMemory&) = delete;
  TrialMemory& operator=(const TrialMemory&) = delete;

 private:
  void fill(std::byte* memory, std::size_t bytes) const;

  const Gpu& gpu_;
  void* memory_ = nullptr;
};

/// Milliseconds of each run: the least of several turns, in which each runs for about as long as the others. So time
/// that other work on the GPU takes is left out.
[[nodiscard]] std::vector<double> time_in_turns(const Gpu& gpu,
                                                std::span<const std::function<void(cudaStream_t stream)>> runs);

}  // namespace shardrun::device::cuda
