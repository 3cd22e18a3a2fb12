#include "core/device/cuda/runtime/gpu.h"

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/device/library.h"

namespace shardrun::device::cuda {
namespace {

constexpr int least_capability = 80;  ///< the oldest GPU for which there are kernels: 8.0

std::string version(int number) { return fmt::format("{}.{}", number / 1000, number % 1000 / 10); }

[[noreturn]] void refuse(const std::string& lacks) { throw Error(ErrorCode::job, lacks); }

/// CUDA reports the same error for a missing driver and for one that is too old.
[[noreturn]] void refuse_driver() {
  int driver = 0;
  int runtime = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess || driver == 0) {
    refuse(fmt::format(
        "there is no NVIDIA driver on this machine (its library libcuda.so.1 was not found): install it, or {}",
        choose_cpu));
  }
  static_cast<void>(cudaRuntimeGetVersion(&runtime));
  refuse(fmt::format("the NVIDIA driver is too old: it supports CUDA {}, and this build needs {}: update the driver",
                     version(driver), version(runtime)));
}

bool is_of_memory_or_loss(cudaError_t error) noexcept {
  return error == cudaErrorMemoryAllocation || error == cudaErrorDevicesUnavailable ||
         error == cudaErrorECCUncorrectable || error == cudaErrorHostMemoryAlreadyRegistered ||
         error == cudaErrorInvalidDevice || error == cudaErrorNoDevice;
}

cudaDeviceProp properties_of(int number) {
  cudaDeviceProp properties = {};
  if (const cudaError_t result = cudaGetDeviceProperties(&properties, number); result != cudaSuccess) {
    refuse(fmt::format("GPU {} does not answer: {} ({}); nvidia-smi tells more", number, cudaGetErrorString(result),
                       cudaGetErrorName(result)));
  }
  return properties;
}

int capability_of(const cudaDeviceProp& properties) { return properties.major * 10 + properties.minor; }

}  // namespace

std::vector<Unit> find_gpus() {
  int count = 0;
  const cudaError_t result = cudaGetDeviceCount(&count);
  if (result == cudaErrorInsufficientDriver) {
    refuse_driver();
  }
  if (result == cudaErrorNoDevice || (result == cudaSuccess && count == 0)) {
    refuse(
        "the NVIDIA driver finds no GPU that this process may use: nvidia-smi lists those of the machine, and "
        "CUDA_VISIBLE_DEVICES may hide them");
  }
  if (result != cudaSuccess) {
    refuse(fmt::format("the NVIDIA driver does not start: {} ({}); nvidia-smi tells more", cudaGetErrorString(result),
                       cudaGetErrorName(result)));
  }
  std::vector<Unit> units;
  for (int number = 0; number < count; ++number) {
    const cudaDeviceProp properties = properties_of(number);
    if (capability_of(properties) < least_capability) {
      refuse(fmt::format(
          "GPU {} ({}) has compute capability {}.{}, and this build has kernels for {}.{} and later: leave "
          "it out with CUDA_VISIBLE_DEVICES",
          number, properties.name, properties.major, properties.minor, least_capability / 10, least_capability % 10));
    }
    units.push_back({.name = properties.name,
                     .memory = properties.totalGlobalMem,
                     .architecture = fmt::format("compute capability {}.{}", properties.major, properties.minor)});
  }
  return units;
}

Gpu::Gpu(int number) : number_(number) {
  const cudaDeviceProp properties = properties_of(number);
  name_ = properties.name;
  capability_ = capability_of(properties);
}

void Gpu::use() const { check(cudaSetDevice(number_), "choosing the GPU"); }

void Gpu::check(cudaError_t result, std::string_view attempted) const {
  if (result != cudaSuccess) {
    throw Error(is_of_memory_or_loss(result) ? ErrorCode::io : ErrorCode::internal,
                fmt::format("GPU {} ({}): {}: {} ({})", number_, name_, attempted, cudaGetErrorString(result),
                            cudaGetErrorName(result)));
  }
}

}  // namespace shardrun::device::cuda
