#pragma once

#include <cstddef>
#include <vector>

#include "core/device/cpu/bf16_product.h"
#include "core/device/cpu/product.h"

namespace shardrun::device::cpu {

/// Whether all three matrices are float32. Such a product needs no scratch.
[[nodiscard]] bool in_floats(const Product& product) noexcept;
void multiply_floats(const Product& product, bool accumulate, Threads& threads);

/// Writes to every page. The memory that the operating system counts as used must equal the plan, and a product need
/// not use all of its scratch.
void touch_pages(std::byte* scratch, std::size_t bytes) noexcept;

/// A product of any types, made once for an instruction, from the sizes, strides and types of `product`. Does not read
/// its data.
class PreparedProduct {
 public:
  explicit PreparedProduct(const Product& product);

  [[nodiscard]] std::size_t scratch_bytes(int threads) const;

  /// c = a b (+ c, if accumulate). The first call takes all of the scratch into use.
  void run(const Product& product, bool accumulate, Threads& threads, std::byte* scratch);

  /// The same on the calling thread, with scratch_bytes(1) of scratch that is in use. Any number of threads may call it
  /// at the same time.
  void run_alone(const Product& product, bool accumulate, std::byte* scratch) const;

 private:
  struct Forms {
    const Bf16Product* overwriting;
    const Bf16Product* adding;
  };
  void multiply(const Product& product, bool accumulate, Threads& threads, std::byte* scratch) const;

  bool floats_;
  Tiles tiles_;
  std::vector<Forms> forms_;  ///< of each tile, by instructions for bfloat16; none: the matrices are widened
  std::size_t share_ = 0;     ///< bytes of scratch of one thread
  bool touched_ = false;      ///< the scratch, by the first call
};

}  // namespace shardrun::device::cpu
