#include <memory>

#include "core/device/host_device.h"

// The device `cuda-emulated`: the processor, with the CUDA kernels' own source. A program that is linked with
// shardrun_cuda_emulated_all has it.

namespace shardrun::device::cuda::emulated {
namespace {

const RegisterDevice registered(std::make_unique<const HostDevice>("cuda-emulated"));

}  // namespace
}  // namespace shardrun::device::cuda::emulated
