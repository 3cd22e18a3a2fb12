#pragma once

#include <cstddef>
#include <string_view>

#include "core/device/cpu/product.h"

namespace shardrun::device::cpu {

/// A product of two bfloat16 matrices by the CPU's own instructions for them, made for its sizes. It sums in float32
/// and rounds once. Any number of threads may use it at the same time.
class Bf16Product {
 public:
  virtual ~Bf16Product() = default;
  [[nodiscard]] virtual std::size_t scratch_bytes() const = 0;
  /// On the calling thread. `product` has the sizes, strides and types of the one it was made for. `scratch` is this
  /// call's alone.
  virtual void run(const Product& product, std::byte* scratch) const noexcept = 0;
};

/// c = a b, or c += a b if `accumulate`. Null if this CPU or the library lacks the instructions, or if the operands'
/// types or sizes are others. c may be float32 or bfloat16. The data of the operands are not read. Products of the same
/// sizes, strides and types share one result, which lives as long as the process. Throws Error{internal} if the library
/// fails.
[[nodiscard]] const Bf16Product* bf16_product(const Product& product, bool accumulate);

/// How this machine multiplies bfloat16 matrices: the library's name, or "widened to float32".
[[nodiscard]] std::string_view bf16_products() noexcept;

}  // namespace shardrun::device::cpu
