#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "transports/nccl/libraries.h"

namespace shardrun::nccl_transport {

/// The number of CUDA devices. Throws TransportError if there is none, or no driver that works.
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

  /// Makes the device current on this thread while the object exists, for NCCL, too.
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

// The following REQUIRE that the device is current.

/// A stream of the highest priority: kernels that fill the device then do not delay those that other ranks wait for.
[[nodiscard]] std::unique_ptr<Owned<CUstream>> make_stream(const Cuda& cuda);
[[nodiscard]] std::unique_ptr<Owned<CUevent>> make_event(const Cuda& cuda);
[[nodiscard]] std::unique_ptr<Owned<CUdeviceptr>> make_memory(const Cuda& cuda, std::size_t bytes);

}  // namespace shardrun::nccl_transport
