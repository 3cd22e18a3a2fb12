// libcuda.so.1 as far as the transport uses it. FAKE_CUDA_DEVICES says how many devices there are.

#include "tests/unit/transports_nccl/fakes/fake.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <vector>

struct CUstream_st {
  std::vector<FakeWork> work;
};
struct CUevent_st {
  std::vector<FakeWork> work;
};

namespace {

std::mutex mutex;
thread_local std::vector<CUcontext> contexts;

int devices() {
  const char* const count = std::getenv("FAKE_CUDA_DEVICES");
  return count != nullptr ? std::atoi(count) : 4;
}

bool is_done(const std::vector<FakeWork>& work) {
  return std::all_of(work.begin(), work.end(), [](const FakeWork& each) { return each->load(); });
}

CUresult with_context() { return contexts.empty() ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS; }

}  // namespace

void fake_stream_add(CUstream stream, const FakeWork& work) {
  const std::lock_guard lock(mutex);
  stream->work.push_back(work);
}

bool fake_has_context() { return !contexts.empty(); }

extern "C" {

CUresult cuInit(unsigned int) { return devices() == 0 ? CUDA_ERROR_NO_DEVICE : CUDA_SUCCESS; }
CUresult cuGetErrorName(CUresult result, const char** name) {
  *name = result == CUDA_ERROR_INVALID_CONTEXT ? "CUDA_ERROR_INVALID_CONTEXT" : "CUDA_ERROR_UNKNOWN";
  return CUDA_SUCCESS;
}
CUresult cuDeviceGetCount(int* count) {
  *count = devices();
  return CUDA_SUCCESS;
}
CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  *device = ordinal;
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  *context = reinterpret_cast<CUcontext>(static_cast<std::uintptr_t>(device) + 1);
  return CUDA_SUCCESS;
}
CUresult cuDevicePrimaryCtxRelease(CUdevice) { return CUDA_SUCCESS; }
CUresult cuCtxPushCurrent(CUcontext context) {
  contexts.push_back(context);
  return CUDA_SUCCESS;
}
CUresult cuCtxPopCurrent(CUcontext* context) {
  *context = contexts.back();
  contexts.pop_back();
  return CUDA_SUCCESS;
}
CUresult cuStreamCreate(CUstream* stream, unsigned int) {
  *stream = new CUstream_st;
  return with_context();
}
CUresult cuStreamDestroy(CUstream stream) {
  delete stream;
  return with_context();
}
CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned int) {
  const std::lock_guard lock(mutex);
  stream->work.insert(stream->work.end(), event->work.begin(), event->work.end());
  return with_context();
}
CUresult cuEventCreate(CUevent* event, unsigned int) {
  *event = new CUevent_st;
  return with_context();
}
CUresult cuEventDestroy(CUevent event) {
  delete event;
  return with_context();
}
CUresult cuEventRecord(CUevent event, CUstream stream) {
  const std::lock_guard lock(mutex);
  event->work = stream->work;
  return with_context();
}
CUresult cuEventQuery(CUevent event) {
  const std::lock_guard lock(mutex);
  return is_done(event->work) ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}
CUresult cuMemAlloc(CUdeviceptr* memory, size_t bytes) {
  *memory = reinterpret_cast<CUdeviceptr>(std::calloc(bytes, 1));
  return with_context();
}
CUresult cuMemFree(CUdeviceptr memory) {
  std::free(reinterpret_cast<void*>(memory));
  return with_context();
}
CUresult cuMemcpyHtoD(CUdeviceptr to, const void* from, size_t bytes) {
  std::memcpy(reinterpret_cast<void*>(to), from, bytes);
  return with_context();
}
CUresult cuMemcpyDtoH(void* to, CUdeviceptr from, size_t bytes) {
  std::memcpy(to, reinterpret_cast<const void*>(from), bytes);
  return with_context();
}

}  // extern "C"
