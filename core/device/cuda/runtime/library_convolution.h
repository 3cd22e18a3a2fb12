#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <span>

#include "core/device/cuda/runtime/convolution_steps.h"
#include "core/device/cuda/runtime/gpu.h"

namespace shardrun::device::cuda {

class CudnnTarget;

/// The memory of one convolution.
struct ConvolutionMemory {
  void* x = nullptr;
  void* w = nullptr;
  void* y = nullptr;
  std::span<std::byte> workspace;
};

/// Enqueues a convolution that is bound to its memory. Any thread may call it. Throws Error{internal}, with sizes and
/// the name of the status, if the library refuses.
using ConvolutionRun = std::function<void(cudaStream_t stream)>;

/// Convolutions computed by a library on one GPU.
class LibraryConvolutions {
 public:
  virtual ~LibraryConvolutions() = default;
  /// Returns a function that computes a convolution on this memory. Does not read or write the memory yet. `adds`: the
  /// function adds to its result. The plan is chosen once for these sizes, types and alignments, and its kernels are
  /// loaded. Returns an empty function if the library has no exact and reproducible plan, or its kernels cannot be
  /// loaded; stderr says which. Throws Error{internal}.
  [[nodiscard]] virtual ConvolutionRun find(const Convolution& convolution, bool adds,
                                            const ConvolutionMemory& memory) = 0;
};

/// Returns null if `target` is null. `gpu` outlives the result.
[[nodiscard]] std::unique_ptr<LibraryConvolutions> open_convolutions(const std::shared_ptr<CudnnTarget>& target,
                                                                     const Gpu& gpu);

}  // namespace shardrun::device::cuda
