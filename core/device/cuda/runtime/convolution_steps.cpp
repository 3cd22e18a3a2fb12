#include "core/device/cuda/runtime/convolution_steps.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "core/graph/sliding.h"
#include "core/memory/layout.h"

namespace shardrun::device::cuda {
namespace {

using graph::DType;
using Makes = Convolution::Makes;
using Sizes = std::array<std::int64_t, 4>;

std::int64_t width_of(DType dtype) { return static_cast<std::int64_t>(graph::element_bytes(dtype)); }
std::int64_t elements_of(const Sizes& sizes) { return sizes[0] * sizes[1] * sizes[2] * sizes[3]; }

/// The four sizes of an image tensor. A tensor of three dimensions has one row.
Sizes four(const graph::TensorType& type) {
  const auto& shape = type.shape;
  return {shape[0], shape[1], shape.size() == 4 ? shape[2] : 1, shape.back()};
}

std::int64_t aligned(std::int64_t bytes) {
  return static_cast<std::int64_t>(memory::align_up(static_cast<std::uint64_t>(bytes), ProductSteps::alignment));
}

/// Bytes of a tensor's copy in the library's layout, in which channels are adjacent and padded to 16 bytes.
std::int64_t copy_bytes(Sizes sizes, DType dtype) {
  const std::int64_t together = 16 / width_of(dtype);
  sizes[1] = (sizes[1] + together - 1) / together * together;
  return elements_of(sizes) * width_of(dtype);
}

/// Bytes of workspace. Engines on tensor cores copy x, w and y to another layout, and sum parts in float32. Engines
/// that multiply float32 exactly need little or none. The bytes are enough for cuDNN 9.19's first choice for each
/// convolution of ResNet-50 (tests/unit/device/true_cudnn_convolutions.cpp).
std::int64_t workspace_of(const Convolution& of) {
  constexpr std::int64_t least = std::int64_t{64} << 10;
  constexpr std::int64_t most_sums = std::int64_t{40} << 20;
  constexpr std::int64_t most_parts = 16;
  constexpr std::int64_t most_more = std::int64_t{16} << 20;
  const std::int64_t sums = copy_bytes(of.w, DType::f32) * (of.makes == Makes::w ? most_parts : 1);
  std::int64_t bytes = least + std::min(sums, most_sums);
  if (of.is_bfloat) {
    const std::int64_t images = copy_bytes(of.x, of.dtype) + copy_bytes(of.y, of.dtype);
    bytes += images + std::min(images / 8, most_more) + copy_bytes(of.w, of.dtype);
  }
  return aligned(bytes);
}

std::int64_t float_bytes(const Sizes& sizes) { return aligned(elements_of(sizes) * width_of(DType::f32)); }

/// Sets the number of images per part and the places in the scratch.
void set_parts(ConvolutionSteps& steps, std::int64_t most_bytes) {
  const auto scratch_of = [&](std::int64_t count) {
    const Convolution part = steps.part(count);
    return workspace_of(part) + (steps.casts ? float_bytes(part.x) + float_bytes(part.y) : 0) +
           (steps.sums ? float_bytes(part.w) : 0);
  };
  const std::int64_t images = steps.whole.x[0];
  const std::int64_t of_image = std::max(scratch_of(2) - scratch_of(1), std::int64_t{1});
  const std::int64_t of_weights = scratch_of(1) - of_image;
  steps.images = std::clamp((most_bytes - of_weights) / of_image, std::int64_t{1}, images);
  const Convolution part = steps.part(steps.images);
  steps.workspace_bytes = static_cast<std::size_t>(workspace_of(part));
  steps.cast_x = workspace_of(part);
  steps.cast_y = steps.cast_x + (steps.casts ? float_bytes(part.x) : 0);
  steps.sum = steps.cast_y + (steps.casts ? float_bytes(part.y) : 0);
  steps.scratch_bytes =
      static_cast<std::size_t>(scratch_of(steps.images)) + ProductSteps::alignment - memory::alignment;
}

/// The op as a convolution of the library. Nothing if the library does not compute it.
std::optional<Convolution> convolution_of(std::string_view op, const graph::OpShape& shape) {
  const graph::TensorType& first = shape.inputs[0];
  const graph::TensorType& second = shape.inputs[1];
  const graph::TensorType& result = shape.outputs[0];
  const bool is_real = first.dtype == DType::f32 || first.dtype == DType::bf16;
  const bool is_cast = op == "conv_gradient_weights" && first.dtype == DType::bf16 && result.dtype == DType::f32;
  if (!is_real || first.dtype != second.dtype || (first.dtype != result.dtype && !is_cast)) {
    return std::nullopt;
  }
  Convolution made{.dtype = result.dtype, .is_bfloat = first.dtype == DType::bf16};
  if (op == "conv") {
    made.makes = Makes::y;
    made.x = four(first);
    made.w = four(second);
    made.y = four(result);
  } else if (op == "conv_gradient_input") {
    made.makes = Makes::x;
    made.x = four(result);
    made.w = four(second);
    made.y = four(first);
  } else {
    made.makes = Makes::w;
    made.x = four(second);
    made.w = four(result);
    made.y = four(first);
  }
  if (elements_of(made.x) == 0 || elements_of(made.w) == 0 || elements_of(made.y) == 0) {
    return std::nullopt;
  }
  const std::size_t dimensions = first.shape.size() - 2;
  const std::vector<std::int64_t> sizes(made.w.end() - static_cast<std::ptrdiff_t>(dimensions), made.w.end());
  const std::vector<graph::Sliding> slidings = graph::sliding_of(shape.attributes, sizes);
  for (std::size_t d = 0; d < dimensions; ++d) {
    const std::size_t to = 2 - dimensions + d;
    made.strides[to] = slidings[d].stride;
    made.dilations[to] = slidings[d].dilation;
    made.before[to] = slidings[d].low;
    made.after[to] = slidings[d].high;
  }
  return made;
}

}  // namespace

std::string text_of(const Convolution& of) {
  constexpr std::array<const char*, 3> names = {"conv", "conv_gradient_input", "conv_gradient_weights"};
  return fmt::format("{} {}[{}] * [{}] -> [{}]", names[static_cast<std::size_t>(of.makes)], to_string(of.dtype),
                     fmt::join(of.x, ", "), fmt::join(of.w, ", "), fmt::join(of.y, ", "));
}

Convolution ConvolutionSteps::part(std::int64_t count) const {
  Convolution made = whole;
  made.x[0] = made.y[0] = count;
  return made;
}

bool is_convolution(std::string_view op) {
  return op == "conv" || op == "conv_gradient_input" || op == "conv_gradient_weights";
}

std::optional<ConvolutionSteps> convolution_steps(std::string_view op, const graph::OpShape& shape,
                                                  std::int64_t most_bytes) {
  const std::optional<Convolution> whole = convolution_of(op, shape);
  if (!whole) {
    return std::nullopt;
  }
  ConvolutionSteps made{.whole = *whole, .casts = whole->is_bfloat && whole->dtype == DType::f32};
  set_parts(made, most_bytes);
  if (whole->makes == Makes::w && whole->dtype == DType::bf16 && made.images < whole->x[0]) {
    made.whole.dtype = DType::f32;
    made.casts = made.sums = true;
    set_parts(made, most_bytes);
  }
  return made;
}

}  // namespace shardrun::device::cuda
