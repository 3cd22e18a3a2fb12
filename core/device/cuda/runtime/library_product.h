#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "core/device/cuda/runtime/cublaslt.h"
#include "core/device/cuda/runtime/gpu.h"
#include "core/device/cuda/runtime/product_steps.h"

namespace shardrun::device::cuda {

/// The memory of one product.
struct ProductMemory {
  const void* a = nullptr;
  const void* b = nullptr;
  void* c = nullptr;
  std::span<std::byte> workspace;  ///< of the size with which it was made
};

/// A product by cuBLASLt, made for its sizes, types, layouts and the alignment of its memory. Any thread may run it.
class LibraryProduct {
 public:
  virtual ~LibraryProduct() = default;
  /// Enqueues it. Throws Error{internal} with its sizes and the name of the status when the library refuses.
  virtual void run(const ProductMemory& memory, bool accumulate, cudaStream_t stream) const = 0;
};

/// Products by cuBLASLt on one GPU.
class LibraryProducts {
 public:
  /// `found` and `gpu` outlive it. Throws Error{internal} when cuBLASLt does not start. REQUIRES: found.is_used.
  LibraryProducts(const FoundCublasLt& found, const Gpu& gpu);

  [[nodiscard]] Padding padding() const { return found_.pads ? Padding{} : Padding::never(); }

  /// A product for this memory, of which it reads and writes nothing yet. It is chosen once for all steps of the same
  /// sizes, types, layouts and alignments, and its kernels are loaded. Null: the library has none, or its kernels could
  /// not be loaded, which is said on stderr. Throws Error{internal}.
  [[nodiscard]] std::shared_ptr<const LibraryProduct> find(const ProductStep& step, const ProductMemory& memory);

 private:
  const FoundCublasLt& found_;
  const Gpu& gpu_;
  cublasLtHandle_t handle_ = nullptr;
  std::mutex mutex_;
  std::map<std::vector<std::int64_t>, std::shared_ptr<const LibraryProduct>> known_;
};

}  // namespace shardrun::device::cuda
