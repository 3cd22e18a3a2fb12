#pragma once

#include <cstddef>
#include <string_view>

#include "core/device/cpu/product.h"

namespace shardrun::device::cpu {

/// A product of two bfloat16 matrices that uses the CPU's bfloat16 instructions. It is compiled for given sizes, sums
/// in float32 and rounds once. Any number of threads may use one object at the same time.
class Bf16Product {
 public:
  virtual ~Bf16Product() = default;
  [[nodiscard]] virtual std::size_t scratch_bytes() const = 0;
  /// Runs on the calling thread. `product` has the sizes, strides and types for which this object was made. `scratch`
  /// must not be shared with another running call.
  virtual void run(const Product& product, std::byte* scratch) const noexcept = 0;
};

/// Returns the kernel for c = a b, or for c += a b if `accumulate`. a and b are bfloat16; c is bfloat16 or float32.
/// Only sizes, strides and types are read, not data. Equal arguments give the same object, which is never freed.
/// Null if the CPU or the library lacks the instructions, or does not support these types or sizes.
/// Throws Error{internal} if the library fails.
[[nodiscard]] const Bf16Product* bf16_product(const Product& product, bool accumulate);

/// How this machine multiplies bfloat16 matrices: a library's name, or "widened to float32".
[[nodiscard]] std::string_view bf16_products() noexcept;

}  // namespace shardrun::device::cpu
