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
  std::size_t alignment = 256;  ///< alignment of its address: exactly this if below 256
  std::byte* data = nullptr;    ///< set by TrialMemory; null if it has no bytes
};

/// Memory for trials. It holds numbers around 0 with varying bits, like a job's: the power that products take, and so
/// their time, depends on the numbers.
class TrialMemory {
 public:
  /// `gpu` outlives it. Throws Error{io} if the GPU does not have so much memory.
  TrialMemory(const Gpu& gpu, std::span<TrialBuffer> buffers);
  ~TrialMemory();
  TrialMemory(const TrialMemory&) = delete;
  TrialMemory& operator=(const TrialMemory&) = delete;

 private:
  void fill(std::byte* memory, std::size_t bytes) const;

  const Gpu& gpu_;
  void* memory_ = nullptr;
};

/// Returns the milliseconds of each run: its least time of several rounds. In a round, each run is repeated for about
/// the same time. The minimum leaves out time that other work on the GPU takes.
[[nodiscard]] std::vector<double> time_in_turns(const Gpu& gpu,
                                                std::span<const std::function<void(cudaStream_t stream)>> runs);

}  // namespace shardrun::device::cuda
