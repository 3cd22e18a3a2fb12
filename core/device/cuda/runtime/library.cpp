#include "core/device/library.h"

#include "core/device/cuda/runtime/device.h"

// libshardrun_cuda.so exports one function. The program calls it to get the device `cuda` and its kernels.

namespace shardrun::device::cuda {
namespace {

std::unique_ptr<const Device> open() { return std::make_unique<const CudaDevice>(); }

std::vector<LibraryKernel> kernels() { return kernels_of_device("cuda"); }

}  // namespace
}  // namespace shardrun::device::cuda

extern "C" __attribute__((visibility("default"))) const shardrun::device::DeviceLibrary* shardrun_device_v1() {
  static const shardrun::device::DeviceLibrary library = {.build = shardrun::device::build_of_devices(),
                                                          .open = shardrun::device::cuda::open,
                                                          .kernels = shardrun::device::cuda::kernels};
  return &library;
}
