#pragma once

#include <cuda.h>

#include <cstdint>
#include <optional>

#include "core/device/cuda/runtime/gpu.h"
#include "core/device/memory.h"

namespace shardrun::device::cuda {

/// A block of a GPU's memory that transports can register for their fastest paths: physical memory that other processes
/// and network cards can map. A switch that sums (NVLink SHARP) cannot map the memory of cudaMalloc.
class VirtualMemory {
 public:
  /// Returns nothing if the driver or the GPU has no virtual memory that processes can share.
  [[nodiscard]] static std::optional<VirtualMemory> of(const Gpu& gpu);

  /// Allocates at least `bytes`, in multiples of the GPU's granularity. Returns the driver's result. If memory that
  /// network cards can reach is refused, but not for lack of memory, allocates memory that they cannot reach.
  [[nodiscard]] CUresult allocate(std::uint64_t bytes);
  /// Frees the allocated memory. REQUIRES: no work uses it.
  void free() noexcept;

  [[nodiscard]] void* data() const noexcept;
  [[nodiscard]] std::uint64_t bytes() const noexcept { return bytes_; }

 private:
  /// Functions of the driver, found by name because this library is not linked with it.
  struct Functions {
    CUresult (*attribute)(int* value, CUdevice_attribute attribute, CUdevice device) = nullptr;
    CUresult (*granularity)(std::size_t* bytes, const CUmemAllocationProp* of,
                            CUmemAllocationGranularity_flags which) = nullptr;
    CUresult (*create)(CUmemGenericAllocationHandle* made, std::size_t bytes, const CUmemAllocationProp* of,
                       unsigned long long flags) = nullptr;
    CUresult (*release)(CUmemGenericAllocationHandle made) = nullptr;
    CUresult (*reserve)(CUdeviceptr* address, std::size_t bytes, std::size_t alignment, CUdeviceptr at,
                        unsigned long long flags) = nullptr;
    CUresult (*free)(CUdeviceptr address, std::size_t bytes) = nullptr;
    CUresult (*map)(CUdeviceptr address, std::size_t bytes, std::size_t offset, CUmemGenericAllocationHandle made,
                    unsigned long long flags) = nullptr;
    CUresult (*unmap)(CUdeviceptr address, std::size_t bytes) = nullptr;
    CUresult (*set_access)(CUdeviceptr address, std::size_t bytes, const CUmemAccessDesc* access,
                           std::size_t count) = nullptr;
  };

  [[nodiscard]] CUresult try_allocate(std::uint64_t bytes);

  Functions driver_;
  CUmemAllocationProp kind_ = {};
  std::uint64_t bytes_ = 0;
  CUdeviceptr address_ = 0;
  bool is_mapped_ = false;
};

/// An arena in a GPU's memory: virtual memory if the GPU supports and grants it, else memory of cudaMalloc. The
/// constructor fills the arena with a pattern that is NaN in every floating-point type, so that written pages can be
/// counted and reads of unwritten memory show.
class CudaMemory final : public Memory {
 public:
  /// `gpu` outlives it. Throws Error{io} if the GPU does not have so much memory.
  CudaMemory(const Gpu& gpu, std::uint64_t bytes);
  ~CudaMemory() override;

  /// Returns 0 after a failure of the GPU.
  [[nodiscard]] std::uint64_t touched_bytes() const override;

 private:
  void free() noexcept;

  const Gpu& gpu_;
  std::optional<VirtualMemory> virtual_;
};

}  // namespace shardrun::device::cuda
