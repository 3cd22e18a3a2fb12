#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <functional>
#include <memory>
#include <span>

#include "core/device/cuda/runtime/attention_steps.h"
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

/// Returns a function that computes a convolution on this memory. Does not read or write the memory yet. `adds`: the
/// function adds to its result. The plan is chosen once for these sizes, types and alignments, and its kernels are
/// loaded. Returns an empty function if the library has no exact and reproducible plan, or its kernels cannot be
/// loaded, which stderr tells. Throws Error{internal}.
using FindConvolution =
    std::function<ConvolutionRun(const Convolution& convolution, bool adds, const ConvolutionMemory& memory)>;

/// Convolutions by cuDNN on one GPU. Empty if `target` is null. `gpu` outlives the result.
[[nodiscard]] FindConvolution open_convolutions(const std::shared_ptr<CudnnTarget>& target, const Gpu& gpu);

/// The memory of a part of attention. The gradients' pointers are null in attention itself.
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
  void* sums = nullptr;     ///< the row sums of dout * out
  void* dq_sums = nullptr;  ///< float32 sums of dq, if they are added up in any order
  std::span<std::byte> workspace = {};
};

/// Enqueues attention that is bound to its memory. Any thread may call it. Throws Error{internal}, with sizes and the
/// name of the status, if the library refuses.
using AttentionRun = std::function<void(cudaStream_t stream)>;

/// Returns a function that computes attention on this memory. Does not access the memory yet. The plan is chosen once
/// for all attention of these sizes, and its kernels are loaded. Returns an empty function for gradients above compute
/// capability 9.0, and if there is no plan or its kernels cannot be loaded, which stderr tells. Throws Error{internal}.
using FindAttention =
    std::function<AttentionRun(const FusedAttention& attention, float scale, const AttentionMemory& memory)>;

/// Attention by cuDNN on one GPU. Empty if `target` is null, or if cuDNN cannot compile kernels (FoundCudnn::attends).
/// `gpu` outlives the result.
[[nodiscard]] FindAttention open_attention(const std::shared_ptr<CudnnTarget>& target, const Gpu& gpu);

}  // namespace shardrun::device::cuda
