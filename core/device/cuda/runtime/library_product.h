#pragma once

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "core/device/cuda/runtime/cublaslt.h"
#include "core/device/cuda/runtime/gpu.h"
#include "core/device/cuda/runtime/product_steps.h"
#include "core/device/cuda/runtime/timed_products.h"

namespace shardrun::device::cuda {

/// The epilogue of a product: ops on its sums before they are stored in c. Matrices have the shape and type of c. A
/// null pointer means that there is no such operand.
struct Epilogue {
  enum class Gelu : std::uint8_t { none, forward, backward };

  const void* added = nullptr;  ///< a matrix that is added
  const void* bias = nullptr;   ///< a vector of n elements of c's type, added to each row
  /// GELU of the sums so far, in its tanh form (forward), or the sums times GELU's derivative at `operand` (backward).
  Gelu gelu = Gelu::none;
  void* operand = nullptr;  ///< of GELU, a matrix: forward writes it, backward reads it

  [[nodiscard]] bool is_empty() const noexcept { return added == nullptr && bias == nullptr && gelu == Gelu::none; }
};

/// The memory of one product.
struct ProductMemory {
  const void* a = nullptr;
  const void* b = nullptr;
  void* c = nullptr;
  std::span<std::byte> workspace = {};  ///< of the size with which it was made
  Epilogue epilogue = {};
};

/// A product by cuBLASLt, made for its sizes, types, layouts, the alignment of its memory, and its epilogue. Any thread
/// may run it.
class LibraryProduct {
 public:
  virtual ~LibraryProduct() = default;
  /// Enqueues it. Throws Error{internal} with its sizes and the name of the status when the library refuses.
  /// `memory`: its bias and its operand of GELU are those with which it was made. REQUIRES: it adds to c only without
  /// an epilogue.
  virtual void run(const ProductMemory& memory, bool accumulate, cudaStream_t stream) const = 0;
  /// This product with the bias and the operand of another epilogue, which has the same kinds and alignments.
  [[nodiscard]] virtual std::shared_ptr<const LibraryProduct> with(const Epilogue& epilogue) const = 0;
};

/// Products by cuBLASLt on one GPU.
class LibraryProducts {
 public:
  /// `found` and `gpu` outlive it. Throws Error{internal} when cuBLASLt does not start, and as TimedProducts. REQUIRES:
  /// found.is_used.
  LibraryProducts(const FoundCublasLt& found, const Gpu& gpu);

  [[nodiscard]] bool fuses() const noexcept { return found_.fuses; }

  /// A product for this memory. Reads and writes none of it yet. The algorithm is chosen once for all steps of these
  /// sizes, types, layouts, alignments and epilogues, and its kernels are loaded. With timed products it is the one in
  /// the file, or is timed now, in memory of its own; without that memory it is the first one, which is said on stderr.
  /// Null: the library has no algorithm, or its kernels could not be loaded, which is said on stderr. With an epilogue,
  /// any other failure gives null and is said too; without one, it throws Error{internal}. Throws Error{job} as
  /// TimedProducts.
  [[nodiscard]] std::shared_ptr<const LibraryProduct> find(const ProductStep& step, const ProductMemory& memory);

 private:
  [[nodiscard]] std::shared_ptr<const LibraryProduct> make(const ProductStep& step, const ProductMemory& memory);

  const FoundCublasLt& found_;
  const Gpu& gpu_;
  cublasLtHandle_t handle_ = nullptr;
  std::mutex mutex_;
  std::optional<TimedProducts> timed_;
  std::map<std::vector<std::int64_t>, std::shared_ptr<const LibraryProduct>> known_;
};

}  // namespace shardrun::device::cuda
