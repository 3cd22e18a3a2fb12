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
/// null pointer means that the epilogue lacks that operand.
struct Epilogue {
  enum class Gelu : std::uint8_t { none, forward, backward };

  const void* added = nullptr;  ///< a matrix that is added
  const void* bias = nullptr;   ///< a vector of n elements of c's type, added to each row
  /// forward: GELU, in its tanh form, of the sums so far. backward: the sums times GELU's derivative at `operand`.
  Gelu gelu = Gelu::none;
  void* operand = nullptr;  ///< GELU's matrix: forward writes it, backward reads it

  [[nodiscard]] bool is_empty() const noexcept { return added == nullptr && bias == nullptr && gelu == Gelu::none; }
};

/// The memory of one product.
struct ProductMemory {
  const void* a = nullptr;
  const void* b = nullptr;
  void* c = nullptr;
  std::span<std::byte> workspace = {};  ///< of the size for which the product was made
  Epilogue epilogue = {};
};

/// A product by cuBLASLt, made for its sizes, types, layouts, epilogue and alignment of memory. Any thread may run it.
class LibraryProduct {
 public:
  virtual ~LibraryProduct() = default;
  /// Enqueues the product. `memory` has the bias and the GELU operand with which the product was made.
  /// Throws Error{internal}, with sizes and the name of the status, if the library refuses.
  /// REQUIRES: the product has no epilogue if `accumulate` is true.
  virtual void run(const ProductMemory& memory, bool accumulate, cudaStream_t stream) const = 0;
  /// A copy of this product with the bias and the GELU operand of another epilogue of the same kind and alignment.
  [[nodiscard]] virtual std::shared_ptr<const LibraryProduct> with(const Epilogue& epilogue) const = 0;
};

/// Products by cuBLASLt on one GPU.
class LibraryProducts {
 public:
  /// `found` and `gpu` outlive it. Throws Error{internal} if cuBLASLt does not start, and errors of TimedProducts'
  /// constructor. REQUIRES: found.is_used.
  LibraryProducts(const FoundCublasLt& found, const Gpu& gpu);

  [[nodiscard]] bool fuses() const noexcept { return found_.fuses; }

  /// Returns a product for this memory. Does not read or write the memory yet. The algorithm is chosen once for all
  /// steps of these sizes, types, layouts, alignments and epilogues, and its kernels are loaded. A timed product uses
  /// the algorithm in the file, or is timed now in memory allocated for that. If timing fails, it uses the library's
  /// first algorithm, and stderr says so. Returns null if the library has no algorithm, or if its kernels cannot be
  /// loaded, which stderr tells. Other failures throw Error{internal}, or Error{job} as TimedProducts does. With an
  /// epilogue they give null instead, and stderr tells them.
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
