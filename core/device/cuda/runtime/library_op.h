#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "core/device/cuda/runtime/gpu.h"
#include "core/device/device.h"

/// Ops that a library computes where it can, else our own kernels.
namespace shardrun::device::cuda {

/// An op with its memory, as Device::prepare() is given it.
struct OpToPrepare {
  const Kernel& kernel;  ///< our own
  const graph::Attributes& attributes;
  std::vector<TensorView> inputs;
  std::vector<TensorView> outputs;
  std::span<std::byte> scratch;
  std::string_view makes;

  [[nodiscard]] std::vector<graph::TensorType> input_types() const;
  [[nodiscard]] std::vector<graph::TensorType> output_types() const;
  /// The scratch from its first address that this divides. Throws Error{internal} if less is planned than needed.
  [[nodiscard]] std::byte* scratch_at(std::size_t alignment, std::size_t needed) const;
};

/// Enqueues what a library does for an op, on the call's stream. Empty: the library cannot do it.
using LibraryWork = std::function<void(const KernelCall& call)>;

/// The op, computed by the function that `find` returns, or by our own kernel if that is empty. The first call writes
/// all of the scratch: the memory measured as used must equal the plan, and a library need not use all of it. An Error
/// of `find` gets the op's name. `op.kernel` and `op.attributes` outlive the result.
[[nodiscard]] std::unique_ptr<const PreparedKernel> prepare_for_library(OpToPrepare op,
                                                                        const std::function<LibraryWork()>& find);

/// The library's work for a prepared op. Null: our own kernel computes it.
[[nodiscard]] const LibraryWork* work_of(const PreparedKernel& op);

/// Two ops, the second right after the first, both computed by `work`, with the first one's scratch.
[[nodiscard]] std::unique_ptr<const PreparedKernel> prepare_fused(const PreparedKernel& first,
                                                                  const PreparedKernel& next,
                                                                  std::vector<TensorView> inputs,
                                                                  std::vector<TensorView> outputs, LibraryWork work);

/// Loads the kernels that `enqueue` enqueues. CUDA would load them when they first run (see CudaDevice::allocate). A
/// graph of them is made and not run: this loads them, and touches none of their memory. Throws Error.
void load_kernels(const Gpu& gpu, const std::function<void(cudaStream_t stream)>& enqueue);

}  // namespace shardrun::device::cuda
