#pragma once

#include <cstddef>
#include <string_view>
#include <vector>

#include "core/device/cpu/product.h"

namespace shardrun::device::cpu {

/// A product of two bfloat16 matrices that uses the CPU's bfloat16 instructions. It is compiled for given sizes, sums
/// in float32 and rounds once. Any number of threads can use one object at the same time.
class Bf16Product {
 public:
  virtual ~Bf16Product() = default;
  [[nodiscard]] virtual std::size_t scratch_bytes() const = 0;
  /// Runs on the calling thread. `product` has the sizes, strides and types for which this object was made. `scratch`
  /// must not be shared with another running call.
  virtual void run(const Product& product, std::byte* scratch) const noexcept = 0;
};

/// Returns the kernel for c = a b, or for c += a b if `accumulate`. c is bfloat16 or float32. Only sizes, strides and
/// types are read, not data. Equal arguments give the same object, which is never freed. Returns null if the CPU or the
/// library lacks the instructions, if a or b is not bfloat16, or if a size is 0. Throws Error{internal} if the library
/// fails.
[[nodiscard]] const Bf16Product* bf16_product(const Product& product, bool accumulate);

/// For people: how this machine multiplies bfloat16 matrices ("oneDNN with AMX", or "widened to float32").
[[nodiscard]] std::string_view bf16_products() noexcept;

/// Whether all three matrices are float32. Such a product needs no scratch.
[[nodiscard]] bool in_floats(const Product& product) noexcept;
void multiply_floats(const Product& product, bool accumulate, Threads& threads);

/// Writes to every page of the scratch. The memory that the operating system counts as used must equal the plan, but a
/// product does not always use all of its scratch.
void touch_pages(std::byte* scratch, std::size_t bytes) noexcept;

/// A matrix product of any types, prepared once for an instruction, from the sizes, strides and types of `product`.
class PreparedProduct {
 public:
  explicit PreparedProduct(const Product& product);

  [[nodiscard]] std::size_t scratch_bytes(int threads) const;

  /// c = a b, plus c if `accumulate`. The first call touches all pages of the scratch.
  void run(const Product& product, bool accumulate, Threads& threads, std::byte* scratch);

  /// Like run(), but on the calling thread alone, with scratch_bytes(1) bytes of scratch whose pages are touched
  /// already. Any number of threads can call this at the same time.
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
  bool touched_ = false;      ///< whether the first call has touched the scratch's pages
};

}  // namespace shardrun::device::cpu
