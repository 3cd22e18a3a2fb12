#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "core/device/cuda/runtime/gpu.h"
#include "core/device/device.h"

/// Ops that a library computes if it can, else our own kernels.
namespace shardrun::device::cuda {

/// An op with its memory: the arguments of Device::prepare().
struct OpToPrepare {
  const Kernel& kernel;  ///< our own kernel of the op
  const graph::Attributes& attributes;
  std::vector<TensorView> inputs;
  std::vector<TensorView> outputs;
  std::span<std::byte> scratch;
  std::string_view makes;

  [[nodiscard]] std::vector<graph::TensorType> input_types() const;
  [[nodiscard]] std::vector<graph::TensorType> output_types() const;
  /// The first address in the scratch that is a multiple of `alignment`. Throws Error{internal} if the scratch has
  /// fewer than `needed` bytes, which include the bytes that the alignment skips.
  [[nodiscard]] std::byte* scratch_at(std::size_t alignment, std::size_t needed) const;
};

/// Enqueues a library's work for an op on the call's stream. Empty: the library cannot compute the op.
using LibraryWork = std::function<void(const KernelCall& call)>;

/// Prepares an op that is computed by the function that `find` returns, or by our own kernel if that is empty. The
/// first call writes all of the scratch: the memory measured as used must equal the plan, and a library may use only a
/// part of it. The op's name is put before the message of an Error of `find`. `op.kernel` and `op.attributes` outlive
/// the result.
[[nodiscard]] std::unique_ptr<const PreparedKernel> prepare_for_library(OpToPrepare op,
                                                                        const std::function<LibraryWork()>& find);

/// The library's work for a prepared op. Null if our own kernel computes it.
[[nodiscard]] const LibraryWork* work_of(const PreparedKernel& op);

/// Makes one kernel of two consecutive ops. `work` computes both, with the scratch of the first.
[[nodiscard]] std::unique_ptr<const PreparedKernel> prepare_fused(const PreparedKernel& first,
                                                                  const PreparedKernel& next,
                                                                  std::vector<TensorView> inputs,
                                                                  std::vector<TensorView> outputs, LibraryWork work);

/// Loads the kernels that `enqueue` enqueues, which CUDA would otherwise load when they first run (see
/// CudaDevice::allocate). They are captured in a CUDA graph that is never launched: this loads them without touching
/// their memory. Throws Error.
void load_kernels(const Gpu& gpu, const std::function<void(cudaStream_t stream)>& enqueue);

}  // namespace shardrun::device::cuda
