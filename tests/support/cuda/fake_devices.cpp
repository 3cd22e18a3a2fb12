// The functions of the fake CUDA runtime for GPUs and errors.

#include <algorithm>
#include <cstdio>
#include <iterator>

#include "tests/support/cuda/fake_cuda_state.h"

namespace fake = shardrun::test::fake_cuda;
using fake::Fake;
using fake::with;

namespace {

struct Text {
  cudaError_t error;
  const char* name;
  const char* text;
};
constexpr Text texts[] = {
    {cudaErrorInvalidValue, "cudaErrorInvalidValue", "invalid argument"},
    {cudaErrorMemoryAllocation, "cudaErrorMemoryAllocation", "out of memory"},
    {cudaErrorInsufficientDriver, "cudaErrorInsufficientDriver",
     "CUDA driver version is insufficient for CUDA runtime version"},
    {cudaErrorDevicesUnavailable, "cudaErrorDevicesUnavailable", "CUDA-capable device(s) is/are busy or unavailable"},
    {cudaErrorNoDevice, "cudaErrorNoDevice", "no CUDA-capable device is detected"},
    {cudaErrorInvalidDevice, "cudaErrorInvalidDevice", "invalid device ordinal"},
    {cudaErrorECCUncorrectable, "cudaErrorECCUncorrectable", "uncorrectable ECC error encountered"},
    {cudaErrorNotReady, "cudaErrorNotReady", "device not ready"},
    {cudaErrorIllegalAddress, "cudaErrorIllegalAddress", "an illegal memory access was encountered"},
    {cudaErrorLaunchFailure, "cudaErrorLaunchFailure", "unspecified launch failure"},
};

const Text* text_of(cudaError_t error) {
  const auto* const found = std::ranges::find(texts, error, &Text::error);
  return found == std::end(texts) ? nullptr : found;
}

}  // namespace

const char* cudaGetErrorName(cudaError_t error) {
  const Text* const found = text_of(error);
  return found == nullptr ? "an error that the fake does not know" : found->name;
}
const char* cudaGetErrorString(cudaError_t error) {
  const Text* const found = text_of(error);
  return found == nullptr ? "an error that the fake does not know" : found->text;
}
cudaError_t cudaGetLastError() {
  return with([](Fake&, auto&) { return cudaSuccess; });
}
cudaError_t cudaDriverGetVersion(int* version) {
  return with([&](const Fake& fake, auto&) {
    *version = fake.settings.driver;
    return cudaSuccess;
  });
}
cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = 13000;
  return cudaSuccess;
}
cudaError_t cudaGetDeviceCount(int* count) {
  return with([&](const Fake& fake, auto&) {
    *count = fake.settings.gpus;
    return fake.settings.driver < 13000 ? cudaErrorInsufficientDriver : *count == 0 ? cudaErrorNoDevice : cudaSuccess;
  });
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int number) {
  return with([&](const Fake& fake, auto&) {
    if (number < 0 || number >= fake.settings.gpus) {
      return cudaErrorInvalidDevice;
    }
    *properties = {};
    std::snprintf(properties->name, sizeof(properties->name), "Fake H200");
    properties->totalGlobalMem = fake.settings.memory;
    properties->major = fake.settings.capability / 10;
    properties->minor = fake.settings.capability % 10;
    return cudaSuccess;
  });
}
cudaError_t cudaSetDevice(int number) {
  return with([&](const Fake& fake, auto&) {
    if (number < 0 || number >= fake.settings.gpus) {
      return cudaErrorInvalidDevice;
    }
    fake::set_device(number);
    return cudaSuccess;
  });
}
