#include "transports/nccl/libraries.h"

#include <dlfcn.h>

#include <shardrun/sdk/transport/op.hpp>

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

// Names of the functions in the ABI, which cuda.h hides behind macros.
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

}  // namespace shardrun::nccl_transport
