#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/device/cuda/runtime/product_steps.h"
#include "core/graph/op.h"

/// cuDNN computes a convolution or one of its gradients in parts of some images, which are cast first if types are
/// mixed. Shapes and types alone decide the parts, so memory can be planned without the library and without a GPU.
namespace shardrun::device::cuda {

/// A convolution y of x with w, or one of its gradients; `Makes` says which of the three tensors is computed. All have
/// the same type and the layout [batch, channels, rows, columns].
struct Convolution {
  enum class Makes { y, x, w };
  Makes makes = Makes::y;
  graph::DType dtype = graph::DType::f32;
  /// Whether all elements are bfloat16 values, which tensor cores multiply exactly. Tensor cores round other numbers.
  bool is_bfloat = false;
  std::array<std::int64_t, 4> x = {};
  std::array<std::int64_t, 4> w = {};
  std::array<std::int64_t, 4> y = {};
  std::array<std::int64_t, 2> strides = {1, 1};
  std::array<std::int64_t, 2> dilations = {1, 1};
  std::array<std::int64_t, 2> before = {};  ///< padding
  std::array<std::int64_t, 2> after = {};

  auto operator<=>(const Convolution&) const = default;
};

/// A text for messages: "conv_gradient_weights bf16[32, 64, 56, 56] * [64, 64, 3, 3] -> [32, 64, 56, 56]".
[[nodiscard]] std::string text_of(const Convolution& convolution);

struct ConvolutionSteps {
  Convolution whole;  ///< the convolution of all images
  /// Images that the library computes at a time; the last part may have fewer. Weight gradients of parts are summed.
  std::int64_t images = 0;
  /// x and y are bfloat16, and the gradient of the weights or its sum is float32. So x and y are cast in the scratch.
  bool casts = false;
  /// The gradient of the weights is bfloat16. The parts are summed in float32 in the scratch, and rounded once.
  bool sums = false;
  // Sizes and places in bytes. Places count from the first multiple of ProductSteps::alignment in the scratch.
  std::size_t workspace_bytes = 0;
  std::int64_t cast_x = 0;
  std::int64_t cast_y = 0;
  std::int64_t sum = 0;
  std::size_t scratch_bytes = 0;

  /// The convolution of `count` images.
  [[nodiscard]] Convolution part(std::int64_t count) const;
};

/// Limit of the scratch in bytes, unless one image alone needs more.
inline constexpr std::int64_t most_convolution_bytes = std::int64_t{256} << 20;

/// Whether the op is `conv` or a gradient of it.
[[nodiscard]] bool is_convolution(std::string_view op);

/// Returns nothing if our own kernels must compute the op: a tensor is empty, or the types are not all float32 or all
/// bfloat16. A gradient of weights can be float32 with bfloat16 operands. REQUIRES: is_convolution(op).
[[nodiscard]] std::optional<ConvolutionSteps> convolution_steps(std::string_view op, const graph::OpShape& shape,
                                                                std::int64_t most_bytes = most_convolution_bytes);

}  // namespace shardrun::device::cuda
