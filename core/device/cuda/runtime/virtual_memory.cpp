#include "core/device/cuda/runtime/virtual_memory.h"

#include "core/memory/layout.h"

namespace shardrun::device::cuda {
namespace {

template <typename Function>
bool find(const char* name, Function& function) {
  constexpr unsigned since = 12000;
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
  if (cudaGetDriverEntryPointByVersion(name, &found, since, cudaEnableDefault, &result) != cudaSuccess ||
      result != cudaDriverEntryPointSuccess || found == nullptr) {
    static_cast<void>(cudaGetLastError());  // it does not concern later calls
    return false;
  }
  function = reinterpret_cast<Function>(found);
  return true;
}

}  // namespace

std::optional<VirtualMemory> VirtualMemory::of(const Gpu& gpu) {
  gpu.use();
  VirtualMemory memory;
  Functions& driver = memory.driver_;
  if (!find("cuDeviceGetAttribute", driver.attribute) || !find("cuMemGetAllocationGranularity", driver.granularity) ||
      !find("cuMemCreate", driver.create) || !find("cuMemRelease", driver.release) ||
      !find("cuMemAddressReserve", driver.reserve) || !find("cuMemAddressFree", driver.free) ||
      !find("cuMemMap", driver.map) || !find("cuMemUnmap", driver.unmap) ||
      !find("cuMemSetAccess", driver.set_access)) {
    return std::nullopt;
  }
  const CUdevice device = gpu.number();  // the runtime counts GPUs as the driver does
  const auto has = [&](CUdevice_attribute attribute) {
    int value = 0;
    return driver.attribute(&value, attribute, device) == CUDA_SUCCESS && value != 0;
  };
  if (!has(CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED) ||
      !has(CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED)) {
    return std::nullopt;
  }
  memory.kind_.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  memory.kind_.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  memory.kind_.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = device};
  memory.kind_.allocFlags.gpuDirectRDMACapable =
      has(CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WITH_CUDA_VMM_SUPPORTED) ? 1 : 0;
  return memory;
}

CUresult VirtualMemory::allocate(std::uint64_t bytes) {
  const CUresult result = try_allocate(bytes);
  if (result == CUDA_SUCCESS || result == CUDA_ERROR_OUT_OF_MEMORY || kind_.allocFlags.gpuDirectRDMACapable == 0) {
    return result;
  }
  kind_.allocFlags.gpuDirectRDMACapable = 0;  // some systems have the attribute, and no network card that can do it
  return try_allocate(bytes);
}

CUresult VirtualMemory::try_allocate(std::uint64_t bytes) {
  std::size_t piece = 0;
  CUresult result = driver_.granularity(&piece, &kind_, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  bytes_ = memory::align_up(bytes, piece);
  CUmemGenericAllocationHandle made = {};
  result = driver_.create(&made, bytes_, &kind_, 0);
  if (result != CUDA_SUCCESS) {
    return result;
  }
  result = driver_.reserve(&address_, bytes_, piece, 0, 0);
  if (result == CUDA_SUCCESS) {
    result = driver_.map(address_, bytes_, 0, made, 0);
    is_mapped_ = result == CUDA_SUCCESS;
  }
  static_cast<void>(driver_.release(made));  // it lives while it is mapped
  if (result == CUDA_SUCCESS) {
    const CUmemAccessDesc access = {.location = kind_.location, .flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE};
    result = driver_.set_access(address_, bytes_, &access, 1);
  }
  if (result != CUDA_SUCCESS) {
    free();
  }
  return result;
}

void VirtualMemory::free() noexcept {
  if (is_mapped_) {
    static_cast<void>(driver_.unmap(address_, bytes_));
  }
  if (address_ != 0) {
    static_cast<void>(driver_.free(address_, bytes_));
  }
  address_ = 0;
  is_mapped_ = false;
}

void* VirtualMemory::data() const noexcept { return reinterpret_cast<void*>(static_cast<std::uintptr_t>(address_)); }

}  // namespace shardrun::device::cuda
