#pragma once

#include <cstddef>
#include <memory>

#include "core/device/cpu/product.h"

namespace shardrun::device::cpu {

/// A product of two bfloat16 matrices by the CPU's own instructions for them, made once for its sizes. It sums in
/// float32 and rounds once.
class Bf16Product {
 public:
  virtual ~Bf16Product() = default;
  [[nodiscard]] virtual std::size_t scratch_bytes() const = 0;
  /// c = a b (+ c, if accumulate), on the calling thread. `product` has the sizes of the one it was made for. One call
  /// at a time.
  virtual void run(const Product& product, bool accumulate, std::byte* scratch) = 0;
};

/// Null if this CPU or the library lacks the instructions, or if the operands' types or sizes are others. c may be
/// float32 or bfloat16. The data of the operands are not read. Throws Error{internal} if the library fails.
[[nodiscard]] std::unique_ptr<Bf16Product> make_bf16_product(const Product& product);

}  // namespace shardrun::device::cpu
