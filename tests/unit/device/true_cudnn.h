#pragma once

#include <memory>
#include <string_view>

#include "core/device/cuda/runtime/cudnn.h"
#include "core/device/cuda/runtime/cudnn_graph.h"
#include "tests/support/catch.h"

namespace shardrun::test {

/// The device properties that cuDNN gives for an H100 with 80 GB.
inline constexpr const char* h100 =
    R"({"deviceVer":900,"driverVer":13000,"runtimeVer":13000,"cudaDeviceId":0,"pciDeviceId":0,)"
    R"("deviceName":"NVIDIA H100 80GB HBM3","multiProcessorCount":132,"totalGlobalMem":85000000000,)"
    R"("maxGridSize":[2147483647,65535,65535],"maxBlockSize":[1024,1024,64],"maxThreadsPerBlock":1024,)"
    R"("maxThreadsPerSM":2048,"maxCtasPerSM":32,"warpSize":32,"regsPerBlock":65536,"maxRegistersPerSM":65536,)"
    R"("maxSharedMemoryPerBlock":49152,"maxSharedMemoryPerBlockOptin":232448,"reservedSharedMemoryPerBlock":1024,)"
    R"("l2CacheSize":52428800,"smClockRateKHz":1980000,"memClockRateKHz":2619000,"isTccDriver":0,)"
    R"("supportCoopLaunch":1})";

/// The installed cuDNN. It makes plans for the GPU that this JSON describes, which need not be there. Nothing, and a
/// warning, if cuDNN or NVRTC is not installed.
[[nodiscard]] inline std::unique_ptr<device::cuda::CudnnTarget> true_cudnn(std::string_view gpu = h100) {
  const device::cuda::FoundCudnn& found = device::cuda::find_cudnn();
  if (!found.attends) {
    WARN(found.text);
    return nullptr;
  }
  return std::make_unique<device::cuda::CudnnTarget>(*found.functions, gpu);
}

}  // namespace shardrun::test
