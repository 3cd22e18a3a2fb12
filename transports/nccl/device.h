#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "transports/nccl/libraries.h"

namespace shardrun::nccl {

/// One CUDA device by its primary context, which the program's own CUDA code uses too.
class Device {
 public:
  /// The chosen one; without, that of the rank's number on its machine, or the only one that this process may use.
  /// Throws TransportError where there is no such device.
  Device(const Cuda& cuda, std::optional<int> chosen, int local_rank);
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  ~Device();

  [[nodiscard]] const Cuda& cuda() const noexcept { return cuda_; }
  [[nodiscard]] int ordinal() const noexcept { return ordinal_; }

  /// While it exists, the device is this thread's current one, for NCCL too.
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

/// Something of a device that is given back to it. Made and destroyed while the device is in use.
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

// REQUIRE: the device is in use.
[[nodiscard]] std::unique_ptr<Owned<CUstream>> make_stream(const Cuda& cuda);
[[nodiscard]] std::unique_ptr<Owned<CUevent>> make_event(const Cuda& cuda);
[[nodiscard]] std::unique_ptr<Owned<CUdeviceptr>> make_memory(const Cuda& cuda, std::size_t bytes);

}  // namespace shardrun::nccl
