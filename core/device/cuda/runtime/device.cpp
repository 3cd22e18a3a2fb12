#include "core/device/cuda/runtime/device.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "core/base/error.h"
#include "core/base/standard_error.h"
#include "core/device/cuda/fusions.h"
#include "core/device/cuda/known_kernels.h"
#include "core/device/cuda/runtime/attention_steps.h"
#include "core/device/cuda/runtime/convolution_steps.h"
#include "core/device/cuda/runtime/cublaslt.h"
#include "core/device/cuda/runtime/cudnn.h"
#include "core/device/cuda/runtime/cudnn_library.h"
#include "core/device/cuda/runtime/library_ops.h"
#include "core/device/cuda/runtime/library_product.h"
#include "core/device/cuda/runtime/memory.h"
#include "core/device/cuda/runtime/product_steps.h"
#include "core/device/cuda/runtime/queue.h"
#include "core/device/cuda/runtime/shared_library.h"

namespace shardrun::device::cuda {
namespace {

/// Loads all kernels now. CUDA would load a kernel at its first launch, and may wait for all streams before it does.
/// But a stream at a gate waits for another rank, which may wait for this rank's next launch.
void load_kernels(const Gpu& gpu) {
  gpu.use();
  for (const void* const kernel : known_kernels()) {
    cudaFuncAttributes attributes = {};
    gpu.check(cudaFuncGetAttributes(&attributes, kernel), "loading the kernels");
  }
}

}  // namespace

CudaDevice::CudaDevice() : DeviceApart("cuda", "cuda") {
  // Refuse invalid values of the environment variables that choose libraries, even if there is no CUDA driver.
  static_cast<void>(chosen_by_variable(choice_of_products()));
  static_cast<void>(chosen_by_variable(choice_of_dnn()));
}
CudaDevice::~CudaDevice() = default;

DeviceFacts CudaDevice::facts() const {
  DeviceFacts facts{
      .kind = "cuda", .memory = std::nullopt, .computes = {graph::DType::f32, graph::DType::bf16}, .bf16_products = {}};
  try {
    facts.bf16_products = fmt::format("{}; attention and convolutions: {}", find_cublaslt().text, find_cudnn().text);
    const std::size_t unit = static_cast<std::size_t>(gpu().number());
    const std::vector<Unit> gpus = units();
    facts.memory = gpus.at(unit).memory;
    facts.vectors = gpus.at(unit).architecture;
    facts.unit = fmt::format("{} ({}, {})", unit, gpus.at(unit).name, gpus.at(unit).architecture);
  } catch (const Error&) {
    // The error is ignored: units() reports what is missing.
  }
  return facts;
}

std::vector<Unit> CudaDevice::units() const {
  std::vector<Unit> found = find_gpus();
  if (const FoundCublasLt& cublaslt = find_cublaslt(); !cublaslt.timed_products.empty()) {
    // Made here so that a file for another library or GPU is refused before ranks start.
    static_cast<void>(TimedProducts(cublaslt.timed_products, cublaslt.functions.name, found.front().name));
  }
  static_cast<void>(find_cudnn());
  return found;
}

void CudaDevice::use_unit(std::size_t unit) const {
  const std::lock_guard lock(mutex_);
  gpu_.emplace(static_cast<int>(unit));
}

const Gpu& CudaDevice::gpu() const {
  const std::lock_guard lock(mutex_);
  if (!gpu_) {
    static_cast<void>(find_gpus());
    gpu_.emplace(0);
  }
  return *gpu_;
}

std::shared_ptr<const void> CudaDevice::pin(std::span<std::byte> memory) const {
  if (memory.empty()) {
    return nullptr;
  }
  gpu().use();
  gpu().check(cudaHostRegister(memory.data(), memory.size(), cudaHostRegisterPortable),
              fmt::format("pinning {} bytes of the host's memory (staging)", memory.size()));
  {
    const std::lock_guard lock(mutex_);
    pinned_[memory.data()] = memory.size();
  }
  return {memory.data(), [this](const std::byte* address) {
            {
              const std::lock_guard lock(mutex_);
              pinned_.erase(address);
            }
            static_cast<void>(cudaHostUnregister(const_cast<std::byte*>(address)));
          }};
}

bool CudaDevice::is_pinned(const void* memory, std::size_t bytes) const {
  const auto* const address = static_cast<const std::byte*>(memory);
  const std::lock_guard lock(mutex_);
  const auto after = pinned_.upper_bound(address);
  if (after == pinned_.begin()) {
    return false;
  }
  const auto& [begin, size] = *std::prev(after);
  return address + bytes <= begin + size;
}

std::shared_ptr<const Memory> CudaDevice::allocate(std::uint64_t bytes) const {
  load_kernels(gpu());  // first, because kernels take memory of the GPU too
  return std::make_shared<const CudaMemory>(gpu(), bytes);
}

std::unique_ptr<Queue> CudaDevice::open_queue(Threads& threads) const {
  return std::make_unique<CudaQueue>(*this, threads, CudaQueue::Use::kernels);
}

std::unique_ptr<Queue> CudaDevice::open_transfer_queue(Threads& threads) const {
  return std::make_unique<CudaQueue>(*this, threads, CudaQueue::Use::transfers);
}

LibraryProducts* CudaDevice::products() const {
  const FoundCublasLt& found = find_cublaslt();
  if (!found.is_used) {
    return nullptr;
  }
  const Gpu& of = gpu();
  const std::lock_guard lock(mutex_);
  if (products_ == nullptr && !products_failed_) {
    try {
      products_ = std::make_unique<LibraryProducts>(found, of);
    } catch (const Error& error) {
      if (found.is_asked_for) {
        throw;
      }
      products_failed_ = true;
      write_to_standard_error(fmt::format("shardrun: {}: our own kernels multiply\n", error.message()));
    }
  }
  return products_.get();
}

const CudaDevice::Dnn& CudaDevice::dnn() const {
  const Gpu& of = gpu();
  const std::lock_guard lock(mutex_);
  if (!dnn_) {
    const std::shared_ptr<CudnnTarget> target = start_cudnn(of);
    dnn_.emplace(Dnn{open_attention(target, of), open_convolutions(target, of)});
  }
  return *dnn_;
}

const FindAttention* CudaDevice::attention() const {
  const FindAttention& find = dnn().attention;
  return find ? &find : nullptr;
}

const FindConvolution* CudaDevice::convolutions() const {
  const FindConvolution& find = dnn().convolutions;
  return find ? &find : nullptr;
}

std::size_t CudaDevice::scratch_bytes(const Kernel& kernel, const graph::OpShape& shape, int threads) const {
  const std::size_t own = Device::scratch_bytes(kernel, shape, threads);
  const auto with_library = [&](const auto& steps) { return steps ? std::max(own, steps->scratch_bytes) : own; };
  if (is_product(kernel.op)) {
    return with_library(product_steps(kernel.op, shape));
  }
  if (is_attention(kernel.op)) {
    return with_library(attention_steps(kernel.op, shape));
  }
  if (is_convolution(kernel.op)) {
    return with_library(convolution_steps(kernel.op, shape));
  }
  return own;
}

std::unique_ptr<const PreparedKernel> CudaDevice::prepare(const Kernel& kernel, const graph::Attributes& attributes,
                                                          std::vector<TensorView> inputs,
                                                          std::vector<TensorView> outputs, std::span<std::byte> scratch,
                                                          std::string_view makes) const {
  const auto op = [&]() -> OpToPrepare {
    return {.kernel = kernel,
            .attributes = attributes,
            .inputs = std::move(inputs),
            .outputs = std::move(outputs),
            .scratch = scratch,
            .makes = makes};
  };
  if (is_product(kernel.op)) {
    return prepare_product(products(), op());
  }
  if (is_attention(kernel.op)) {
    return prepare_attention(attention(), op());
  }
  if (is_convolution(kernel.op)) {
    return prepare_convolution(convolutions(), op());
  }
  return Device::prepare(kernel, attributes, std::move(inputs), std::move(outputs), scratch, makes);
}

std::unique_ptr<const PreparedKernel> CudaDevice::fuse(const PreparedKernel& first, const PreparedKernel& next) const {
  if (auto fused = fuse_own(first, next)) {
    return fused;
  }
  LibraryProducts* const library = products();
  return library == nullptr || !library->fuses() ? nullptr : fuse_product(*library, first, next);
}

CudaDevice::StreamValues CudaDevice::stream_values() const {
  constexpr unsigned since = 12000;
  const auto find = [&](const char* name) -> StreamValue {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult found = cudaDriverEntryPointSymbolNotFound;
    const cudaError_t result = cudaGetDriverEntryPointByVersion(name, &function, since, cudaEnableDefault, &found);
    if (result != cudaSuccess || found != cudaDriverEntryPointSuccess) {
      static_cast<void>(cudaGetLastError());  // clears the error, so that later calls do not return it
      return nullptr;
    }
    return reinterpret_cast<StreamValue>(function);
  };
  return {.wait = find("cuStreamWaitValue32"), .write = find("cuStreamWriteValue32")};
}

void CudaDevice::add(CudaQueue* queue) const {
  const std::lock_guard lock(queues_mutex_);
  queues_.push_back(queue);
}

void CudaDevice::remove(CudaQueue* queue) const {
  const std::lock_guard lock(queues_mutex_);
  std::erase(queues_, queue);
}

void CudaDevice::end_dropped_work() const {
  const std::lock_guard lock(queues_mutex_);
  for (CudaQueue* const queue : queues_) {
    queue->abandon_copies();
    while (queue->make_next_call()) {
    }
  }
}

void CudaDevice::deliver() const {
  const std::lock_guard lock(queues_mutex_);
  for (CudaQueue* const queue : queues_) {
    queue->deliver();
  }
}

}  // namespace shardrun::device::cuda
