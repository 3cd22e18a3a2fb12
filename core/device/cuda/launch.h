#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>

#include "core/device/cuda/block.h"
#include "core/device/cuda/known_kernels.h"
#include "core/device/device.h"

#if defined(__CUDACC__)
#include <cuda_runtime_api.h>

#include <string>
#include <typeinfo>

#include "core/base/error.h"
#else
#include <type_traits>
#include <typeinfo>
#endif

namespace shardrun::device::cuda {

/// The device for which this build registers its kernels.
#if defined(__CUDACC__)
inline constexpr const char* device_name = "cuda";
#else
inline constexpr const char* device_name = "cuda-emulated";
#endif

/// The most threads of a block if a kernel has no `block_threads`. The compiler limits registers so that a block fits.
inline constexpr int most_threads = 256;

/// The largest number of threads in a block of this kernel: its member `block_threads`, or most_threads if it has none.
template <typename Function>
[[nodiscard]] constexpr int most_threads_of() {
  if constexpr (requires { Function::block_threads; }) {
    return Function::block_threads;
  } else {
    return most_threads;
  }
}

#if defined(__CUDACC__)
template <typename Function>
__global__ void __launch_bounds__(most_threads_of<Function>(), 1) run_block(const __grid_constant__ Function function) {
  extern __shared__ __align__(16) unsigned char shared_memory[];
  Block block(shared_memory);
  function(block);
}
#else
template <typename Function>
void run_block(const void* function, emulated::Strand& strand, unsigned char* memory) {
  Block block(strand, memory);
  (*static_cast<const Function*>(function))(block);
}
#endif

/// Holds and registers the entry of a kernel.
template <typename Function>
struct KnownKernel {
  KnownKernel() : entry(reinterpret_cast<const void*>(&run_block<Function>)) { known_kernels().push_back(entry); }

  const void* entry;
  static const KnownKernel only;
};
template <typename Function>
const KnownKernel<Function> KnownKernel<Function>::only;

/// Enqueues a kernel on the call's stream. Each thread of `blocks` blocks of `threads` threads calls function(block).
/// The function object is copied. Block::shared() can reserve `bytes` in all. Does nothing if `blocks` is 0.
/// REQUIRES: `threads` is a multiple of warp_size and at most most_threads_of<Function>().
/// Throws Error{internal}, naming the kernel, if CUDA refuses the launch. Emulated, throws as emulated::run() does.
template <typename Function>
void launch([[maybe_unused]] const KernelCall& call, std::int64_t blocks, int threads, std::size_t bytes,
            const Function& function) {
  if (blocks == 0) {
    return;
  }
  const std::size_t shared = bytes + join_bytes;
  const void* const entry = KnownKernel<Function>::only.entry;
#if defined(__CUDACC__)
  constexpr std::int64_t most_blocks = (std::int64_t{1} << 31) - 1;
  constexpr std::size_t without_asking = 48 * 1024;
  cudaError_t error = blocks > most_blocks ? cudaErrorInvalidConfiguration : cudaSuccess;
  if (error == cudaSuccess && shared > without_asking) {
    error = cudaFuncSetAttribute(entry, cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared));
  }
  if (error == cudaSuccess) {
    // cudaLaunchKernel() returns the launch's own error. After <<<>>>, cudaGetLastError() could return
    // cudaErrorNotReady, which is left from an earlier query of an event.
    void* arguments[] = {const_cast<Function*>(&function)};
    error = cudaLaunchKernel(entry, dim3(static_cast<unsigned>(blocks)), dim3(static_cast<unsigned>(threads)),
                             arguments, shared, static_cast<cudaStream_t>(call.stream));
  }
  if (error != cudaSuccess) {
    throw Error(ErrorCode::internal, std::string("launching the kernel ") + typeid(Function).name() + " with " +
                                         std::to_string(blocks) + " blocks of " + std::to_string(threads) +
                                         " threads and " + std::to_string(shared) +
                                         " bytes of shared memory: " + cudaGetErrorString(error));
  }
#else
  static_assert(std::is_trivially_copyable_v<Function>);
  emulated::run({.kernel = typeid(Function).name(),
                 .entry = entry,
                 .blocks = blocks,
                 .threads = threads,
                 .shared_bytes = shared,
                 .body = run_block<Function>,
                 .function = &function,
                 .function_bytes = sizeof(Function),
                 .stream = call.stream});
#endif
}

template <typename Function>
struct ForEach {
  std::int64_t count;
  Function function;

  SHARDRUN_ON_DEVICE void operator()(Block& block) const {
    const std::int64_t step = block.blocks() * block.threads();
    for (std::int64_t i = block.index() * block.threads() + block.thread(); i < count; i += step) {
      function(i);
    }
  }
};

/// Enqueues function(index) for each index from 0 to count - 1. A thread gets one index, or several above 2^28 indices.
template <typename Function>
void for_each(const KernelCall& call, std::int64_t count, const Function& function) {
  constexpr std::int64_t most_blocks = std::int64_t{1} << 20;
  const std::int64_t blocks = (count + most_threads - 1) / most_threads;
  launch(call, blocks < most_blocks ? blocks : most_blocks, most_threads, 0, ForEach<Function>{count, function});
}

/// Registers kernels. At namespace scope: `const AddKernels table({{"relu", {.run = relu}}, …});`
class AddKernels {
 public:
  struct Entry {
    const char* op;
    Kernel kernel;
  };
  AddKernels(std::initializer_list<Entry> entries) {
    for (const Entry& entry : entries) {
      const RegisterKernel registered(device_name, entry.op, entry.kernel);
    }
  }
};

}  // namespace shardrun::device::cuda
