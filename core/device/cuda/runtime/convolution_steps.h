#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "core/device/cuda/runtime/product_steps.h"
#include "core/graph/op.h"

/// How a convolution or a gradient of one is computed by cuDNN: in parts of images, each cast if its types are mixed.
/// It follows from shapes and types alone, so memory is planned where there is no library and no GPU.
namespace shardrun::device::cuda {

/// A convolution y of x with w, or a gradient: which of the three is made. All have one type, and lie row by row, as
/// [batch, channels, rows, columns].
struct Convolution {
  enum class Makes { y, x, w };
  Makes makes = Makes::y;
  graph::DType dtype = graph::DType::f32;
  /// Whether all elements are values of bfloat16. Tensor cores multiply these exactly, and round other float32.
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

/// "conv_gradient_weights bf16[32, 64, 56, 56] * [64, 64, 3, 3] -> [32, 64, 56, 56]", for messages.
[[nodiscard]] std::string text_of(const Convolution& convolution);

struct ConvolutionSteps {
  Convolution whole;  ///< with all images
  /// Images that the library makes at a time; the last part has the rest. Weight gradients of the parts are added up.
  std::int64_t images = 0;
  /// x and y are bfloat16 and are made float32 in the scratch, because the gradient of the weights is float32.
  bool casts = false;
  /// The gradient of the weights is bfloat16. Parts add to a float32 one in the scratch, so that it is rounded once.
  bool sums = false;
  // In the scratch, which begins at its first multiple of ProductSteps::alignment.
  std::size_t workspace_bytes = 0;
  std::int64_t cast_x = 0;
  std::int64_t cast_y = 0;
  std::int64_t sum = 0;
  std::size_t scratch_bytes = 0;

  /// The convolution of `count` images.
  [[nodiscard]] Convolution part(std::int64_t count) const;
};

/// The scratch is at most so large, if that for one image is not larger.
inline constexpr std::int64_t most_convolution_bytes = std::int64_t{256} << 20;

/// Whether the op is `conv` or a gradient of it.
[[nodiscard]] bool is_convolution(std::string_view op);

/// Nothing: it is not for the library, because its types are mixed in another way, or it is empty.
/// REQUIRES: is_convolution(op).
[[nodiscard]] std::optional<ConvolutionSteps> convolution_steps(std::string_view op, const graph::OpShape& shape,
                                                                std::int64_t most_bytes = most_convolution_bytes);

}  // namespace shardrun::device::cuda
