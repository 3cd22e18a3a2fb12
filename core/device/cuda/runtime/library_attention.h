#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <span>

#include "core/device/cuda/runtime/attention_steps.h"
#include "core/device/cuda/runtime/gpu.h"

namespace shardrun::device::cuda {

class CudnnTarget;

/// The memory of a part of attention. Gradients are null where attention itself is meant.
struct AttentionMemory {
  void* q = nullptr;
  void* k = nullptr;
  void* v = nullptr;
  void* out = nullptr;
  void* log_sum_exp = nullptr;
  void* dout = nullptr;
  void* dq = nullptr;
  void* dk = nullptr;
  void* dv = nullptr;
  void* sums = nullptr;     ///< over the rows of dout out
  void* dq_sums = nullptr;  ///< in float32, where they are added up in any order
  std::span<std::byte> workspace = {};
};

/// Enqueues attention that is bound to its memory. Any thread may call it. Throws Error{internal} with its sizes and
/// the name of the status when the library refuses.
using AttentionRun = std::function<void(cudaStream_t stream)>;

/// Attention by a library on one GPU.
class LibraryAttention {
 public:
  virtual ~LibraryAttention() = default;
  /// A function that computes attention on this memory. Reads and writes none of the memory yet. The plan is chosen
  /// once for all attention with these sizes, and its kernels are loaded. Empty: the library has no reproducible plan,
  /// or its kernels could not be loaded. Either is said on stderr. Throws Error{internal}.
  [[nodiscard]] virtual AttentionRun find(const FusedAttention& attention, float scale,
                                          const AttentionMemory& memory) = 0;
};

/// Null: `target` is null, or cuDNN cannot compile kernels (FoundCudnn::attends). `gpu` outlives it.
[[nodiscard]] std::unique_ptr<LibraryAttention> open_attention(const std::shared_ptr<CudnnTarget>& target,
                                                               const Gpu& gpu);

}  // namespace shardrun::device::cuda
