#pragma once

#include <cuda.h>
#include <nccl.h>

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <shardrun/sdk/transport/op.hpp>
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

/// Opens both libraries. They stay loaded. Throws TransportError{SR_INVALID} if one is missing, too old or incomplete.
[[nodiscard]] Libraries load_libraries();

/// Throws TransportError{SR_INTERNAL} "WHAT: THE ERROR'S TEXT (ITS NAME)" if the call failed.
void check(const Cuda& cuda, CUresult result, const std::string& what);

/// The number of CUDA devices. Throws TransportError if there is none, or if the driver does not start.
int count_devices(const Cuda& cuda);

/// A CUDA device by its primary context, which the program's own CUDA code shares.
class Device {
 public:
  /// Uses device `chosen`. Without it, uses device `local_rank`, or the only device that this process can see. Throws
  /// TransportError if there is no such device.
  Device(const Cuda& cuda, std::optional<int> chosen, int local_rank);
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  ~Device();

  [[nodiscard]] const Cuda& cuda() const noexcept { return cuda_; }
  [[nodiscard]] int ordinal() const noexcept { return ordinal_; }
  /// "0000:01:00.0". It is the same in all processes of a machine, whatever the device's ordinal.
  [[nodiscard]] std::string bus_id() const;

  /// Makes the device current on this thread while the object exists, for NCCL, too. Throws TransportError.
  class Use {
   public:
    explicit Use(const Device& device);
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
    ~Use();

   private:
    const Device& device_;
  };

 private:
  const Cuda& cuda_;
  int ordinal_;
  CUdevice handle_ = 0;
  CUcontext context_ = nullptr;
};

/// Owns a handle of a device. It is created and destroyed with the device current.
template <class Handle>
class Owned {
 public:
  using Release = CUresult (*)(Handle);

  Owned(Handle handle, Release release) : handle_(handle), release_(release) {}
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  ~Owned() { (void)release_(handle_); }

  [[nodiscard]] Handle get() const noexcept { return handle_; }

 private:
  Handle handle_;
  Release release_;
};

// The following REQUIRE that the device is current. They throw TransportError{SR_INTERNAL}.

/// A stream of the highest priority: kernels that fill the device then do not delay those that other ranks wait for.
[[nodiscard]] std::unique_ptr<Owned<CUstream>> make_stream(const Cuda& cuda);
[[nodiscard]] std::unique_ptr<Owned<CUevent>> make_event(const Cuda& cuda);
[[nodiscard]] std::unique_ptr<Owned<CUdeviceptr>> make_memory(const Cuda& cuda, std::size_t bytes);

class NcclGroup;

/// The memory that the host has registered. Each group registers its ops' memory with its communicator. Any thread may
/// use this object.
class Memories {
 public:
  struct Memory {
    void* data = nullptr;
    std::uint64_t bytes = 0;
  };

  [[nodiscard]] std::uint64_t add(const Memory& memory);
  /// Removes a memory, and deregisters it from the communicators of all groups.
  void remove(std::uint64_t registration);
  /// The memory that contains the buffer. Nothing if the buffer names no registration. Throws
  /// TransportError{SR_INVALID} if the buffer is not in the memory of the registration that it names.
  [[nodiscard]] std::optional<Memory> memory_of(const sdk::Buffer& buffer) const;

  void add(NcclGroup& group);
  void remove(NcclGroup& group);

 private:
  mutable std::mutex mutex_;
  std::map<std::uint64_t, Memory> memories_;
  std::uint64_t last_ = 0;
  std::list<NcclGroup*> groups_;
};

}  // namespace shardrun::nccl_transport
