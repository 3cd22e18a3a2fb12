#pragma once

#include <cuda.h>
#include <nccl.h>

#include <string>

namespace shardrun::nccl_transport {

/// The functions of the driver, libcuda.so.1, that are used.
struct Cuda {
  decltype(&::cuInit) init;
  decltype(&::cuGetErrorName) error_name;
  decltype(&::cuGetErrorString) error_text;
  decltype(&::cuDeviceGetCount) device_count;
  decltype(&::cuDeviceGet) device_get;
  decltype(&::cuDeviceGetPCIBusId) bus_id;
  decltype(&::cuDevicePrimaryCtxRetain) context_retain;
  decltype(&::cuDevicePrimaryCtxRelease) context_release;
  decltype(&::cuCtxPushCurrent) context_push;
  decltype(&::cuCtxPopCurrent) context_pop;
  decltype(&::cuCtxGetStreamPriorityRange) priority_range;
  decltype(&::cuStreamCreateWithPriority) stream_create;
  decltype(&::cuStreamDestroy) stream_destroy;
  decltype(&::cuStreamWaitEvent) stream_wait_event;
  decltype(&::cuEventCreate) event_create;
  decltype(&::cuEventDestroy) event_destroy;
  decltype(&::cuEventRecord) event_record;
  decltype(&::cuEventQuery) event_query;
  decltype(&::cuMemAlloc) allocate;
  decltype(&::cuMemFree) free;
  decltype(&::cuMemcpyHtoDAsync) copy_to_device;
  decltype(&::cuMemcpyDtoH) copy_from_device;
  decltype(&::cuModuleLoadData) module_load;
  decltype(&::cuModuleUnload) module_unload;
  decltype(&::cuModuleGetFunction) module_function;
  decltype(&::cuLaunchKernel) launch_kernel;
};

/// The functions of libnccl.so.2 that are used.
struct Nccl {
  decltype(&::ncclGetVersion) version;
  decltype(&::ncclGetUniqueId) unique_id;
  decltype(&::ncclCommInitRankConfig) init;
  decltype(&::ncclCommGetAsyncError) async_error;
  decltype(&::ncclCommFinalize) finalize;
  decltype(&::ncclCommDestroy) destroy;
  decltype(&::ncclCommAbort) abort;
  decltype(&::ncclGetErrorString) error_text;
  decltype(&::ncclGetLastError) last_error;
  decltype(&::ncclGroupStart) group_start;
  decltype(&::ncclGroupEnd) group_end;
  decltype(&::ncclSend) send;
  decltype(&::ncclRecv) recv;
  decltype(&::ncclBroadcast) broadcast;
  decltype(&::ncclReduce) reduce;
  decltype(&::ncclAllReduce) all_reduce;
  decltype(&::ncclAllGather) all_gather;
  decltype(&::ncclReduceScatter) reduce_scatter;
  decltype(&::ncclCommRegister) register_memory;  ///< since 2.19; null in older libraries, like the next
  decltype(&::ncclCommDeregister) deregister_memory;
};

struct Libraries {
  Cuda cuda{};
  Nccl nccl{};
};

/// Opens both libraries. They stay loaded. Throws TransportError{SR_INVALID}: which file is missing, and what to do.
[[nodiscard]] Libraries load_libraries();

/// Throws TransportError{SR_INTERNAL} "WHAT: THE ERROR'S TEXT (ITS NAME)" if the call failed.
void check(const Cuda& cuda, CUresult result, const std::string& what);

}  // namespace shardrun::nccl_transport
