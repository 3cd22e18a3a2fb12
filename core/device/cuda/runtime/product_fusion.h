#pragma once

#include <optional>
#include <vector>

#include "core/device/cuda/runtime/library_product.h"
#include "core/device/device.h"

/// Which ops an epilogue of cuBLASLt can compute together with the product before them.
namespace shardrun::device::cuda {

/// A product that also does what an op does with its result.
struct Fusion {
  Epilogue epilogue;
  std::vector<TensorView> inputs;
  std::vector<TensorView> outputs;  ///< first what the op makes, then the product's result if that is kept
};

/// `step`: the only step of `product`, which has this epilogue already. Nothing: an epilogue cannot do what `next`
/// does. It can only where everything that both would write is written too, because nobody says which of it is read
/// later:
///  - `add` in place of the product's result. The other operand is a vector for each row, or a tensor like the result.
///  - `gelu`, form tanh, results in bfloat16. If it is not in place, the product's result is kept as its operand.
///  - `gelu_gradient`, likewise, in place.
[[nodiscard]] std::optional<Fusion> fusion_of(const ProductStep& step, const Epilogue& epilogue,
                                              const PreparedKernel& product, const PreparedKernel& next);

}  // namespace shardrun::device::cuda
