#include "transports/nccl/device.h"

#include <dlfcn.h>

#include <array>
#include <cstddef>
#include <shardrun/sdk/transport/op.hpp>
#include <string>

#include "transports/nccl/group.h"

namespace shardrun::nccl_transport {
namespace {

using sdk::TransportError;

/// The first version with non-blocking communicators.
constexpr int oldest_nccl = NCCL_VERSION(2, 14, 0);

class Library {
 public:
  Library(const char* file, std::string remedy)
      : file_(file), remedy_(std::move(remedy)), handle_(dlopen(file, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE)) {
    if (handle_ == nullptr) {
      throw TransportError(SR_INVALID, std::string(dlerror()) + ": " + remedy_);
    }
  }

  template <class Function>
  void find_if_any(const char* symbol, Function& to) const {
    to = reinterpret_cast<Function>(dlsym(handle_, symbol));
  }

  template <class Function>
  void find(const char* symbol, Function& to) const {
    find_if_any(symbol, to);
    if (to == nullptr) {
      throw TransportError(SR_INVALID, file_ + " has no " + symbol + ": " + remedy_);
    }
  }

 private:
  std::string file_;
  std::string remedy_;
  void* handle_;
};

// The names are those of the ABI, which cuda.h hides behind macros.
void load(Cuda& cuda) {
  const Library library("libcuda.so.1",
                        "there is no NVIDIA driver here; install one, or choose a transport for host memory");
  library.find("cuInit", cuda.init);
  library.find("cuGetErrorName", cuda.error_name);
  library.find("cuGetErrorString", cuda.error_text);
  library.find("cuDeviceGetCount", cuda.device_count);
  library.find("cuDeviceGet", cuda.device_get);
  library.find("cuDeviceGetPCIBusId", cuda.bus_id);
  library.find("cuDevicePrimaryCtxRetain", cuda.context_retain);
  library.find("cuDevicePrimaryCtxRelease_v2", cuda.context_release);
  library.find("cuCtxPushCurrent_v2", cuda.context_push);
  library.find("cuCtxPopCurrent_v2", cuda.context_pop);
  library.find("cuCtxGetStreamPriorityRange", cuda.priority_range);
  library.find("cuStreamCreateWithPriority", cuda.stream_create);
  library.find("cuStreamDestroy_v2", cuda.stream_destroy);
  library.find("cuStreamWaitEvent", cuda.stream_wait_event);
  library.find("cuEventCreate", cuda.event_create);
  library.find("cuEventDestroy_v2", cuda.event_destroy);
  library.find("cuEventRecord", cuda.event_record);
  library.find("cuEventQuery", cuda.event_query);
  library.find("cuMemAlloc_v2", cuda.allocate);
  library.find("cuMemFree_v2", cuda.free);
  library.find("cuMemcpyHtoDAsync_v2", cuda.copy_to_device);
  library.find("cuMemcpyDtoH_v2", cuda.copy_from_device);
  library.find("cuModuleLoadData", cuda.module_load);
  library.find("cuModuleUnload", cuda.module_unload);
  library.find("cuModuleGetFunction", cuda.module_function);
  library.find("cuLaunchKernel", cuda.launch_kernel);
}

void load(Nccl& nccl) {
  const Library library("libnccl.so.2", "install NCCL 2.14 or newer (libnccl2), or name its folder in LD_LIBRARY_PATH");
  library.find("ncclGetVersion", nccl.version);
  int version = 0;
  if (nccl.version(&version) != ncclSuccess || version < oldest_nccl) {
    throw TransportError(SR_INVALID,
                         "libnccl.so.2 is of version " + std::to_string(version) + ", expected 21400 (2.14) or newer");
  }
  library.find("ncclGetUniqueId", nccl.unique_id);
  library.find("ncclCommInitRankConfig", nccl.init);
  library.find("ncclCommGetAsyncError", nccl.async_error);
  library.find("ncclCommFinalize", nccl.finalize);
  library.find("ncclCommDestroy", nccl.destroy);
  library.find("ncclCommAbort", nccl.abort);
  library.find("ncclGetErrorString", nccl.error_text);
  library.find("ncclGetLastError", nccl.last_error);
  library.find("ncclGroupStart", nccl.group_start);
  library.find("ncclGroupEnd", nccl.group_end);
  library.find("ncclSend", nccl.send);
  library.find("ncclRecv", nccl.recv);
  library.find("ncclBroadcast", nccl.broadcast);
  library.find("ncclReduce", nccl.reduce);
  library.find("ncclAllReduce", nccl.all_reduce);
  library.find("ncclAllGather", nccl.all_gather);
  library.find("ncclReduceScatter", nccl.reduce_scatter);
  library.find_if_any("ncclCommRegister", nccl.register_memory);
  library.find_if_any("ncclCommDeregister", nccl.deregister_memory);
}

}  // namespace

Libraries load_libraries() {
  Libraries libraries;
  load(libraries.cuda);
  load(libraries.nccl);
  return libraries;
}

void check(const Cuda& cuda, CUresult result, const std::string& what) {
  if (result == CUDA_SUCCESS) {
    return;
  }
  const char* name = nullptr;
  const char* text = nullptr;
  (void)cuda.error_name(result, &name);
  (void)cuda.error_text(result, &text);
  const std::string number = "error " + std::to_string(result);
  throw TransportError(
      SR_INTERNAL, what + ": " + (text != nullptr ? text : number) + " (" + (name != nullptr ? name : number) + ")");
}

int count_devices(const Cuda& cuda) {
  const CUresult started = cuda.init(0);
  int count = 0;
  if (started != CUDA_SUCCESS && started != CUDA_ERROR_NO_DEVICE) {
    check(cuda, started, "the NVIDIA driver does not start (nvidia-smi tells more)");
  }
  if (started == CUDA_SUCCESS) {
    check(cuda, cuda.device_count(&count), "counting CUDA devices");
  }
  if (count == 0) {
    throw sdk::TransportError(SR_INVALID,
                              "this machine has no CUDA device that this process may use: CUDA_VISIBLE_DEVICES may "
                              "hide them; choose a transport for host memory where there is none");
  }
  return count;
}

Device::Device(const Cuda& cuda, std::optional<int> chosen, int local_rank)
    : cuda_(cuda), ordinal_(chosen.value_or(local_rank)) {
  const int count = count_devices(cuda);
  if (!chosen && count == 1) {
    ordinal_ = 0;  // some launchers make only its own device visible to each rank
  }
  if (ordinal_ >= count) {
    throw sdk::TransportError(SR_INVALID, "it needs CUDA device " + std::to_string(ordinal_) +
                                              ", and this process may use " + std::to_string(count) +
                                              " of this machine: start one rank for each device, or set device in "
                                              "[transport.nccl] to the one that each rank is to use of those it may");
  }
  check(cuda, cuda.device_get(&handle_, ordinal_), "opening CUDA device " + std::to_string(ordinal_));
  check(cuda, cuda.context_retain(&context_, handle_), "opening CUDA device " + std::to_string(ordinal_));
}

Device::~Device() { (void)cuda_.context_release(handle_); }

Device::Use::Use(const Device& device) : device_(device) {
  check(device.cuda_, device.cuda_.context_push(device.context_),
        "using CUDA device " + std::to_string(device.ordinal_));
}

Device::Use::~Use() {
  CUcontext context = nullptr;
  (void)device_.cuda_.context_pop(&context);
}

std::string Device::bus_id() const {
  std::array<char, 32> text = {};
  check(cuda_, cuda_.bus_id(text.data(), static_cast<int>(text.size()), handle_),
        "asking where CUDA device " + std::to_string(ordinal_) + " is");
  return text.data();
}

std::unique_ptr<Owned<CUstream>> make_stream(const Cuda& cuda) {
  int least = 0;
  int greatest = 0;
  check(cuda, cuda.priority_range(&least, &greatest), "asking for the priorities of streams");
  CUstream stream = nullptr;
  check(cuda, cuda.stream_create(&stream, CU_STREAM_NON_BLOCKING, greatest), "making a stream");
  return std::make_unique<Owned<CUstream>>(stream, cuda.stream_destroy);
}

std::unique_ptr<Owned<CUevent>> make_event(const Cuda& cuda) {
  CUevent event = nullptr;
  check(cuda, cuda.event_create(&event, CU_EVENT_DISABLE_TIMING), "making an event");
  return std::make_unique<Owned<CUevent>>(event, cuda.event_destroy);
}

std::unique_ptr<Owned<CUdeviceptr>> make_memory(const Cuda& cuda, std::size_t bytes) {
  CUdeviceptr memory = 0;
  check(cuda, cuda.allocate(&memory, bytes), "allocating " + std::to_string(bytes) + " bytes on the device");
  return std::make_unique<Owned<CUdeviceptr>>(memory, cuda.free);
}

std::uint64_t Memories::add(const Memory& memory) {
  const std::lock_guard lock(mutex_);
  memories_[++last_] = memory;
  return last_;
}

void Memories::remove(std::uint64_t registration) {
  const std::lock_guard lock(mutex_);
  for (NcclGroup* const group : groups_) {
    group->deregister(memories_[registration].data);
  }
  memories_.erase(registration);
}

std::optional<Memories::Memory> Memories::memory_of(const sdk::Buffer& buffer) const {
  if (buffer.registration == 0) {
    return std::nullopt;
  }
  const std::lock_guard lock(mutex_);
  const auto found = memories_.find(buffer.registration);
  const auto* const first = static_cast<const std::byte*>(buffer.data);
  if (found != memories_.end()) {
    const Memory& memory = found->second;
    const auto* const begin = static_cast<const std::byte*>(memory.data);
    if (first >= begin && first + buffer.bytes <= begin + memory.bytes) {
      return memory;
    }
  }
  throw sdk::TransportError(SR_INVALID, "its buffer of " + std::to_string(buffer.bytes) +
                                            " bytes is not in the memory that was registered as " +
                                            std::to_string(buffer.registration));
}

void Memories::add(NcclGroup& group) {
  const std::lock_guard lock(mutex_);
  groups_.push_back(&group);
}

void Memories::remove(NcclGroup& group) {
  const std::lock_guard lock(mutex_);
  groups_.remove(&group);
}

}  // namespace shardrun::nccl_transport
