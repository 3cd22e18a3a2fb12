#pragma once

#include <cstddef>
#include <vector>

#include "core/device/cpu/bf16_product.h"
#include "core/device/cpu/product.h"

namespace shardrun::device::cpu {

/// Whether all three matrices are float32. Such a product needs no scratch.
[[nodiscard]] bool in_floats(const Product& product) noexcept;
void multiply_floats(const Product& product, bool accumulate, Threads& threads);

/// Writes to every page of the scratch. The memory that the operating system counts as used must equal the plan, and a
/// product may use only part of its scratch.
void touch_pages(std::byte* scratch, std::size_t bytes) noexcept;

/// A matrix product of any types, prepared once for an instruction, from the sizes, strides and types of `product`.
class PreparedProduct {
 public:
  explicit PreparedProduct(const Product& product);

  [[nodiscard]] std::size_t scratch_bytes(int threads) const;

  /// c = a b, plus c if `accumulate`. The first call touches all pages of the scratch.
  void run(const Product& product, bool accumulate, Threads& threads, std::byte* scratch);

  /// Like run(), but on the calling thread alone, with scratch_bytes(1) bytes of scratch whose pages are touched
  /// already. Any number of threads may call it at the same time.
  void run_alone(const Product& product, bool accumulate, std::byte* scratch) const;

 private:
  struct Forms {
    const Bf16Product* overwriting;
    const Bf16Product* adding;
  };
  void multiply(const Product& product, bool accumulate, Threads& threads, std::byte* scratch) const;

  bool few_rows_;
  bool floats_;
  Tiles tiles_;
  std::vector<Forms> forms_;  ///< of each tile, with bfloat16 instructions; empty: the matrices are widened
  std::size_t share_ = 0;     ///< scratch bytes per thread
  bool touched_ = false;      ///< the first call has touched the scratch's pages
};

}  // namespace shardrun::device::cpu
