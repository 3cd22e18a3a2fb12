// The kernels of the transport for GPUs; reductions.h describes them. kernels.cpp finds each by its name here.

#include "transports/nccl/kernels/reductions.h"

namespace shardrun::nccl_transport::kernels {

__device__ inline Share share_of_thread() {
  return {.first = static_cast<std::uint64_t>(blockIdx.x) * blockDim.x + threadIdx.x,
          .step = static_cast<std::uint64_t>(gridDim.x) * blockDim.x};
}

#define SHARDRUN_NCCL_WITHOUT_BRACKETS(...) __VA_ARGS__
#define SHARDRUN_NCCL_KERNEL(name, Arguments, function)                    \
  extern "C" __global__ void name(const Arguments arguments) {             \
    SHARDRUN_NCCL_WITHOUT_BRACKETS function(arguments, share_of_thread()); \
  }
SHARDRUN_NCCL_KERNELS(SHARDRUN_NCCL_KERNEL)

}  // namespace shardrun::nccl_transport::kernels
