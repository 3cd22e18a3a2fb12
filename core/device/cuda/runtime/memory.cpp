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

/// Two bfloat16 or one float32 that are NaN; as an index, far below 0.
constexpr std::uint32_t unwritten = 0xFFC5FFC5U;

/// Lets `enqueue` give work to a stream of its own, and waits for it.
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

}  // namespace

CudaMemory::CudaMemory(const Gpu& gpu, std::uint64_t bytes) : gpu_(gpu), virtual_(VirtualMemory::of(gpu)) {
  gpu.use();
  const std::uint64_t allocated = std::max<std::uint64_t>(memory::align_up(bytes), memory::align_up(1));
  void* data = nullptr;
  cudaError_t result = cudaSuccess;
  if (virtual_) {
    result = static_cast<cudaError_t>(virtual_->allocate(allocated));
    if (result != cudaSuccess && result != cudaErrorMemoryAllocation) {
      virtual_.reset();  // refused, as in some containers and virtual machines
    }
  }
  if (!virtual_) {
    result = cudaMalloc(&data, allocated);
  }
  if (result != cudaSuccess) {
    std::size_t free = 0;
    std::size_t total = 0;
    static_cast<void>(cudaMemGetInfo(&free, &total));
    static_cast<void>(cudaGetLastError());  // it does not concern later calls
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
    // The failure that has stopped the GPU is thrown by queues.
  }
  if (pages != nullptr) {
    static_cast<void>(cudaFreeHost(pages));
  }
  return touched;
}

}  // namespace shardrun::device::cuda
