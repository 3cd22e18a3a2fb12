#include "core/device/cuda/runtime/memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <functional>

#include "core/base/error.h"
#include "core/device/cuda/copies.h"
#include "core/device/threads.h"
#include "core/memory/layout.h"

namespace shardrun::device::cuda {
namespace {

/// The bits of unwritten memory. Two bfloat16 or one float32 read as NaN; an index reads as a number far below 0.
constexpr std::uint32_t unwritten = 0xFFC5FFC5U;

/// Lets `enqueue` enqueue work on a stream of its own, and waits for that work.
void run_alone(const Gpu& gpu, std::string_view attempted, const std::function<void(const KernelCall&)>& enqueue) {
  cudaStream_t stream = nullptr;
  gpu.check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "making a stream");
  const graph::Attributes attributes;
  const Scalars scalars;
  Threads threads(1);
  cudaError_t result = cudaSuccess;
  try {
    enqueue({.attributes = attributes,
             .inputs = {},
             .outputs = {},
             .scratch = {},
             .scalars = scalars,
             .threads = threads,
             .stream = stream});
    result = cudaStreamSynchronize(stream);
  } catch (...) {
    static_cast<void>(cudaStreamDestroy(stream));
    throw;
  }
  static_cast<void>(cudaStreamDestroy(stream));
  gpu.check(result, attempted);
}

template <typename Function>
bool find(const char* name, Function& function) {
  constexpr unsigned since = 12000;
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
  if (cudaGetDriverEntryPointByVersion(name, &found, since, cudaEnableDefault, &result) != cudaSuccess ||
      result != cudaDriverEntryPointSuccess || found == nullptr) {
    static_cast<void>(cudaGetLastError());  // clears the error, so that later calls do not return it
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
  const CUdevice device = gpu.number();  // the runtime and the driver number GPUs alike
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
  kind_.allocFlags.gpuDirectRDMACapable = 0;  // some systems have the attribute, but no network card that can use it
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
  static_cast<void>(driver_.release(made));  // the memory lives as long as it is mapped
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

CudaMemory::CudaMemory(const Gpu& gpu, std::uint64_t bytes) : gpu_(gpu), virtual_(VirtualMemory::of(gpu)) {
  gpu.use();
  const std::uint64_t allocated = std::max<std::uint64_t>(memory::align_up(bytes), memory::align_up(1));
  void* data = nullptr;
  cudaError_t result = cudaSuccess;
  if (virtual_) {
    result = static_cast<cudaError_t>(virtual_->allocate(allocated));
    if (result != cudaSuccess && result != cudaErrorMemoryAllocation) {
      virtual_.reset();  // virtual memory was refused, as in some containers and virtual machines
    }
  }
  if (!virtual_) {
    result = cudaMalloc(&data, allocated);
  }
  if (result != cudaSuccess) {
    std::size_t free = 0;
    std::size_t total = 0;
    static_cast<void>(cudaMemGetInfo(&free, &total));
    static_cast<void>(cudaGetLastError());  // clears the error, so that later calls do not return it
    gpu.check(result, fmt::format("allocating {} bytes for the arena, with {} of {} bytes free (nvidia-smi shows what "
                                  "other processes hold)",
                                  bytes, free, total));
  }
  data = virtual_ ? virtual_->data() : data;
  set_range(static_cast<std::byte*>(data), bytes);
  try {
    run_alone(gpu, "filling the arena", [&](const KernelCall& call) {
      fill_elements(call, data, static_cast<std::int64_t>(allocated / 4), 4, unwritten);
    });
  } catch (...) {
    free();
    throw;
  }
}

CudaMemory::~CudaMemory() {
  static_cast<void>(cudaSetDevice(gpu_.number()));
  free();
}

void CudaMemory::free() noexcept { virtual_ ? virtual_->free() : static_cast<void>(cudaFree(data())); }

std::uint64_t CudaMemory::touched_bytes() const {
  const std::size_t count = (bytes() + page_bytes - 1) / page_bytes;
  std::uint64_t touched = 0;
  void* pages = nullptr;
  if (count == 0) {
    return 0;
  }
  try {
    gpu_.use();
    gpu_.check(cudaHostAlloc(&pages, count, cudaHostAllocPortable | cudaHostAllocMapped), "allocating a map of pages");
    std::memset(pages, 0, count);
    run_alone(gpu_, "counting the pages of the arena that were written", [&](const KernelCall& call) {
      find_written(call, data(), bytes(), unwritten, static_cast<std::uint8_t*>(pages));
    });
    const auto* const first = static_cast<const std::uint8_t*>(pages);
    touched = static_cast<std::uint64_t>(std::count(first, first + count, 1)) * page_bytes;
  } catch (const Error&) {
    // No error is thrown here: queues throw the failure that has stopped the GPU.
  }
  if (pages != nullptr) {
    static_cast<void>(cudaFreeHost(pages));
  }
  return touched;
}

}  // namespace shardrun::device::cuda
