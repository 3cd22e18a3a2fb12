// The driver functions that transports/nccl calls, implemented with those of the fake runtime.

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstring>
#include <mutex>
#include <set>
#include <string_view>
#include <vector>

#include "tests/support/cuda/fake_cuda.h"
#include "transports/nccl/kernels/reductions.h"

namespace fake = shardrun::test::fake_cuda;
namespace kernels = shardrun::nccl_transport::kernels;

namespace {

std::mutex mutex;
std::atomic<int> launches_until_failure = 0;  ///< 0: no launch fails
std::set<CUdeviceptr> allocated;
thread_local std::vector<int> devices_before;  ///< for each push, the device that was current before

/// Driver and runtime use the same numbers for errors.
CUresult result_of(cudaError_t error) { return static_cast<CUresult>(static_cast<int>(error)); }

FakeStream* stream_of(CUstream stream) { return reinterpret_cast<FakeStream*>(stream); }
FakeEvent* event_of(CUevent event) { return reinterpret_cast<FakeEvent*>(event); }

/// Returns what the runtime function returns; an error if no GPU is current.
template <class Act>
CUresult on_device(const Act& act) {
  return fake::device() == fake::no_device ? CUDA_ERROR_INVALID_CONTEXT : result_of(act());
}

/// A kernel of the transport, compiled as C++. One call computes one thread.
struct Kernel {
  std::string_view name;
  std::size_t bytes;  ///< size of the arguments
  void (*run)(const void* arguments, kernels::Share share);
};
#define FAKE_CUDA_WITHOUT_BRACKETS(...) __VA_ARGS__
#define FAKE_CUDA_KERNEL(name, Arguments, function)                                                                 \
  Kernel{#name, sizeof(kernels::Arguments), [](const void* arguments, kernels::Share share) {                       \
           kernels::FAKE_CUDA_WITHOUT_BRACKETS function(*static_cast<const kernels::Arguments*>(arguments), share); \
         }},
constexpr Kernel all_kernels[] = {SHARDRUN_NCCL_KERNELS(FAKE_CUDA_KERNEL)};

/// Runs work on a stream of its own, and returns when it is done.
CUresult run_alone(std::function<void()> work) {
  return on_device([&] {
    cudaStream_t stream = nullptr;
    static_cast<void>(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    fake::enqueue(stream, std::move(work));
    const cudaError_t result = cudaStreamSynchronize(stream);
    static_cast<void>(cudaStreamDestroy(stream));
    return result;
  });
}

struct Name {
  CUresult result;
  const char* name;
};
constexpr Name names[] = {{CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE"},
                          {CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"},
                          {CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT"},
                          {CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND"},
                          {CUDA_ERROR_ECC_UNCORRECTABLE, "CUDA_ERROR_ECC_UNCORRECTABLE"},
                          {CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS"},
                          {CUDA_ERROR_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED"}};

}  // namespace

bool fake::is_of_driver(const void* memory) {
  const std::lock_guard lock(mutex);
  const auto after = allocated.upper_bound(reinterpret_cast<CUdeviceptr>(memory));
  // Allocations of the fake are at least a page apart, and is_on_gpu() accepts only whole ranges of one allocation.
  return after != allocated.begin() && fake::is_on_gpu(reinterpret_cast<const void*>(*std::prev(after)),
                                                       reinterpret_cast<CUdeviceptr>(memory) - *std::prev(after) + 1);
}

extern "C" {

void fake_cuda_set_gpus(int count) { fake::set_gpus(count); }
void fake_cuda_set_error(int error) { fake::set_error(error); }
void fake_cuda_fail_launch(int number) { launches_until_failure = number; }
void fake_cuda_forget(long number) { fake::forget(number); }

CUresult cuInit(unsigned int) {
  int count = 0;
  return result_of(cudaGetDeviceCount(&count));
}
CUresult cuGetErrorName(CUresult result, const char** name) {
  const auto* const found = std::ranges::find(names, result, &Name::result);
  *name = found == std::end(names) ? "CUDA_ERROR_UNKNOWN" : found->name;
  return CUDA_SUCCESS;
}
CUresult cuGetErrorString(CUresult result, const char** text) {
  *text = cudaGetErrorString(static_cast<cudaError_t>(static_cast<int>(result)));
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetCount(int* count) { return result_of(cudaGetDeviceCount(count)); }
CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  *device = ordinal;
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetPCIBusId(char* to, int bytes, CUdevice device) {
  std::snprintf(to, static_cast<std::size_t>(bytes), "0000:%02X:00.0", static_cast<unsigned>(device) + 1);
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  *context = reinterpret_cast<CUcontext>(static_cast<std::uintptr_t>(device) + 1);
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRelease(CUdevice) { return CUDA_SUCCESS; }
CUresult cuCtxPushCurrent(CUcontext context) {
  devices_before.push_back(fake::device());
  fake::set_device(static_cast<int>(reinterpret_cast<std::uintptr_t>(context)) - 1);
  return CUDA_SUCCESS;
}
CUresult cuCtxPopCurrent(CUcontext*) {
  fake::set_device(devices_before.back());
  devices_before.pop_back();
  return CUDA_SUCCESS;
}
CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return CUDA_SUCCESS;
}

CUresult cuStreamCreateWithPriority(CUstream* stream, unsigned flags, int) {
  return on_device([&] {
    cudaStream_t made = nullptr;
    const cudaError_t result = cudaStreamCreateWithFlags(&made, flags);
    *stream = reinterpret_cast<CUstream>(made);
    return result;
  });
}
CUresult cuStreamCreate(CUstream* stream, unsigned flags) { return cuStreamCreateWithPriority(stream, flags, 0); }
CUresult cuStreamDestroy(CUstream stream) {
  return on_device([&] { return cudaStreamDestroy(stream_of(stream)); });
}
CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int flags) {
  return on_device([&] { return cudaStreamWaitEvent(stream_of(stream), event_of(event), flags); });
}
CUresult cuStreamSynchronize(CUstream stream) {
  return on_device([&] { return cudaStreamSynchronize(stream_of(stream)); });
}
CUresult cuEventCreate(CUevent* event, unsigned flags) {
  return on_device([&] {
    cudaEvent_t made = nullptr;
    const cudaError_t result = cudaEventCreateWithFlags(&made, flags);
    *event = reinterpret_cast<CUevent>(made);
    return result;
  });
}
CUresult cuEventDestroy(CUevent event) {
  return on_device([&] { return cudaEventDestroy(event_of(event)); });
}
CUresult cuEventRecord(CUevent event, CUstream stream) {
  return on_device([&] { return cudaEventRecord(event_of(event), stream_of(stream)); });
}
CUresult cuEventQuery(CUevent event) {
  return on_device([&] {
    const cudaError_t result = cudaEventQuery(event_of(event));
    if (result == cudaErrorNotReady) {
      fake::nudge();
    }
    return result;
  });
}

CUresult cuMemAlloc(CUdeviceptr* memory, std::size_t bytes) {
  return on_device([&] {
    void* made = nullptr;
    const cudaError_t result = cudaMalloc(&made, bytes);
    *memory = reinterpret_cast<CUdeviceptr>(made);
    const std::lock_guard lock(mutex);
    allocated.insert(*memory);
    return result;
  });
}
CUresult cuMemFree(CUdeviceptr memory) {
  return on_device([&] {
    {
      const std::lock_guard lock(mutex);
      allocated.erase(memory);
    }
    return cudaFree(reinterpret_cast<void*>(memory));
  });
}
CUresult cuMemcpyHtoD(CUdeviceptr to, const void* from, std::size_t bytes) {
  return run_alone([=] { std::copy_n(static_cast<const std::byte*>(from), bytes, reinterpret_cast<std::byte*>(to)); });
}
CUresult cuMemcpyDtoH(void* to, CUdeviceptr from, std::size_t bytes) {
  return run_alone([=] { std::copy_n(reinterpret_cast<const std::byte*>(from), bytes, static_cast<std::byte*>(to)); });
}
/// Copies from memory that is not pinned, so the host's bytes are read during the call.
CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void* from, std::size_t bytes, CUstream stream) {
  return on_device([&] {
    const auto* const first = static_cast<const unsigned char*>(from);
    fake::enqueue(stream_of(stream), [to, data = std::vector<unsigned char>(first, first + bytes)] {
      std::ranges::copy(data, reinterpret_cast<unsigned char*>(to));
    });
    return cudaSuccess;
  });
}

CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  return on_device([&] {
    constexpr unsigned char fatbin[] = {0x50, 0xED, 0x55, 0xBA};
    *module = reinterpret_cast<CUmodule>(1);
    return std::memcmp(image, fatbin, sizeof(fatbin)) == 0 ? cudaSuccess : cudaErrorInvalidValue;
  });
}
CUresult cuModuleUnload(CUmodule) { return CUDA_SUCCESS; }
CUresult cuModuleGetFunction(CUfunction* function, CUmodule, const char* name) {
  const auto* const found = std::ranges::find(all_kernels, std::string_view(name), &Kernel::name);
  *function = found == std::end(all_kernels) ? nullptr : reinterpret_cast<CUfunction>(const_cast<Kernel*>(found));
  return *function == nullptr ? CUDA_ERROR_NOT_FOUND : CUDA_SUCCESS;
}
/// Runs the threads of a kernel one after the other, in a random order.
CUresult cuLaunchKernel(CUfunction function, unsigned blocks, unsigned, unsigned, unsigned threads, unsigned, unsigned,
                        unsigned, CUstream stream, void** parameters, void**) {
  return on_device([&] {
    if (blocks == 0 || threads == 0 || threads > 1024 || fake::device_of(stream) != fake::device()) {
      return cudaErrorInvalidValue;
    }
    if (launches_until_failure > 0 && --launches_until_failure == 0) {
      return cudaErrorLaunchFailure;
    }
    const auto& kernel = *reinterpret_cast<const Kernel*>(function);
    const auto* const first = static_cast<const unsigned char*>(parameters[0]);
    const std::uint64_t all = std::uint64_t{blocks} * threads;
    const std::uint64_t begin = fake::random() % all;
    fake::enqueue(stream_of(stream), [&kernel, arguments = std::vector(first, first + kernel.bytes), all, begin] {
      for (std::uint64_t i = 0; i < all; ++i) {
        kernel.run(arguments.data(), {.first = (begin + i) % all, .step = all});
      }
    });
    return cudaSuccess;
  });
}

}  // extern "C"
