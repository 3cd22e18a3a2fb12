#include <cstdlib>
#include <map>
#include <memory>
#include <string>

#include "core/device/cuda/emulated/emulator.h"
#include "core/device/cuda/runtime/device.h"
#include "core/device/library.h"
#include "core/device/threads.h"
#include "tests/support/cuda/fake_cuda.h"

// The library of device `cuda` with a fake of CUDA's runtime and the emulated kernels, late on their streams. An op
// that has no CUDA kernel has that of the cpu, unless FAKE_CUDA_ONLY_CUDA is set.

namespace shardrun::test {
namespace {

using device::Kernel;
using device::KernelCall;

/// A kernel of the cpu, run on one thread when its stream comes to it.
class LateKernel final : public device::AddedKernel {
 public:
  explicit LateKernel(Kernel kernel) : kernel_(kernel) {}

  void run(const KernelCall& call) const override {
    fake_cuda::enqueue(
        call.stream, [this, attributes = &call.attributes, inputs = std::vector(call.inputs.begin(), call.inputs.end()),
                      outputs = std::vector(call.outputs.begin(), call.outputs.end()), accumulate = call.accumulate,
                      scratch = call.scratch, scalars = call.scalars, prepared = call.prepared] {
          device::Threads alone(1);
          device::run_kernel(kernel_, {.attributes = *attributes,
                                       .inputs = inputs,
                                       .outputs = outputs,
                                       .accumulate = accumulate,
                                       .scratch = scratch,
                                       .scalars = scalars,
                                       .threads = alone,
                                       .prepared = prepared});
        });
  }
  [[nodiscard]] std::size_t scratch_bytes(const graph::OpShape& shape) const override {
    return device::scratch_of(kernel_, shape, 1);
  }
  [[nodiscard]] std::shared_ptr<void> prepare(const graph::OpShape& shape) const override {
    return device::prepare_kernel(kernel_, shape);
  }

 private:
  Kernel kernel_;
};

std::unique_ptr<const device::Device> open() {
  device::cuda::emulated::set_enqueue(fake_cuda::enqueue);
  return std::make_unique<const device::cuda::CudaDevice>();
}

std::vector<device::LibraryKernel> kernels() {
  std::vector<device::LibraryKernel> all = device::kernels_of_device("cuda-emulated");
  if (std::getenv("FAKE_CUDA_ONLY_CUDA") != nullptr) {
    return all;
  }
  static std::map<std::string, std::unique_ptr<const LateKernel>, std::less<>> late;
  const device::Device& emulated = device::Device::find("cuda-emulated");
  for (const device::LibraryKernel& each : device::kernels_of_device("cpu")) {
    if (emulated.find_kernel(each.op) == nullptr) {
      const auto made = late.emplace(each.op, std::make_unique<const LateKernel>(each.kernel)).first;
      all.push_back({made->first, {.added = made->second.get()}});
    }
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
