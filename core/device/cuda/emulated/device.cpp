#include <memory>

#include "core/device/host_device.h"

// The device `cuda-emulated` runs the source of the CUDA kernels on the processor. Programs that link
// shardrun_cuda_emulated_all have it.

namespace shardrun::device::cuda::emulated {
namespace {

const RegisterDevice registered(std::make_unique<const HostDevice>("cuda-emulated"));

}  // namespace
}  // namespace shardrun::device::cuda::emulated
