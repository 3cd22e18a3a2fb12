#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <vector>

#include "core/device/cuda/emulated/emulator.h"
#include "core/device/cuda/runtime/device.h"
#include "core/device/library.h"
#include "tests/support/cuda/fake_cublaslt.h"
#include "tests/support/cuda/fake_cuda.h"
#include "tests/support/cuda/fake_cudnn.h"

// A library of the device `cuda` with the fake CUDA runtime and emulated kernels, which run when their streams get to
// them. FAKE_CUDA_WITHOUT names an op whose kernel is missing, FAKE_CUDA_STUCK an op whose kernel never ends.

namespace shardrun::test {
namespace {

std::unique_ptr<const device::Device> open() {
  device::cuda::emulated::set_enqueue(fake_cuda::enqueue);
  fake_cuda::lend_to_cublaslt();
  fake_cuda::lend_to_cudnn();
  return std::make_unique<const device::cuda::CudaDevice>();
}

void never_end(const device::KernelCall&) {
  for (;;) {
    pause();
  }
}

std::vector<device::LibraryKernel> kernels() {
  std::vector<device::LibraryKernel> all = device::kernels_of_device("cuda-emulated");
  if (const char* const left_out = std::getenv("FAKE_CUDA_WITHOUT"); left_out != nullptr) {
    std::erase_if(all, [&](const device::LibraryKernel& each) { return each.op == left_out; });
  }
  if (const char* const stuck = std::getenv("FAKE_CUDA_STUCK"); stuck != nullptr) {
    std::ranges::find(all, stuck, &device::LibraryKernel::op)->kernel.run = never_end;
  }
  return all;
}

}  // namespace
}  // namespace shardrun::test

extern "C" __attribute__((visibility("default"))) const shardrun::device::DeviceLibrary* shardrun_device_v1() {
  static const shardrun::device::DeviceLibrary library = {
      .build = shardrun::device::build_of_devices(), .open = shardrun::test::open, .kernels = shardrun::test::kernels};
  return &library;
}
