#pragma once

#include <cstddef>
#include <cstdint>

#include "core/device/device.h"
#include "core/device/matrices.h"

/// The matrix products that `matmul` and `matmul_gradient_weights` compute.
namespace shardrun::device {

/// The shape and type of a product's operand, with or without memory.
struct TensorShape {
  explicit TensorShape(const TensorView& view)
      : shape(view.shape.data()), rank(view.rank), dtype(view.dtype), data(static_cast<std::byte*>(view.data)) {}
  explicit TensorShape(const graph::TensorType& type)
      : shape(type.shape.data()), rank(static_cast<std::uint32_t>(type.shape.size())), dtype(type.dtype) {}

  /// Product of the dimensions [first, last).
  [[nodiscard]] std::int64_t extent(std::uint32_t first, std::uint32_t last) const {
    std::int64_t product = 1;
    for (std::uint32_t d = first; d < last; ++d) {
      product *= shape[d];
    }
    return product;
  }
  [[nodiscard]] Operand matrix(std::int64_t stride, bool transposed = false) const {
    return {data, dtype, stride, transposed};
  }

  const std::int64_t* shape;
  std::uint32_t rank;
  graph::DType dtype;
  std::byte* data = nullptr;
};

/// x: [L, K...]   w: [K..., N...], or [N..., K...] when transposed   y: [L, N...]
inline Product product_of_matmul(const graph::Attributes& attributes, const TensorShape& x, const TensorShape& w,
                                 const TensorShape& y) {
  const bool transposed = attributes.integer("transpose") != 0;
  const std::uint32_t lead = x.rank - static_cast<std::uint32_t>(attributes.integer("contract"));
  const std::int64_t k = x.extent(lead, x.rank);
  const std::int64_t n = y.extent(lead, y.rank);
  return {x.extent(0, lead),
          n,
          k,
          x.matrix(k),
          w.matrix(transposed ? k : n, transposed),
          y.matrix(n),
          graph::has_fixed_order(attributes)};
}

/// x: [L, K...]   dy: [L, N...]   dw: [K..., N...] = xᵀ dy, or [N..., K...] = dyᵀ x when transposed
inline Product product_of_weight_gradient(const graph::Attributes& attributes, const TensorShape& x,
                                          const TensorShape& dy, const TensorShape& dw) {
  const std::uint32_t lead = x.rank - static_cast<std::uint32_t>(attributes.integer("contract"));
  const std::int64_t tokens = x.extent(0, lead);
  const std::int64_t width = x.extent(lead, x.rank);
  const std::int64_t outputs = dy.extent(lead, dy.rank);
  if (attributes.integer("transpose") != 0) {
    return {outputs, width, tokens, dy.matrix(outputs, true), x.matrix(width), dw.matrix(width)};
  }
  return {width, outputs, tokens, x.matrix(width, true), dy.matrix(outputs), dw.matrix(outputs)};
}

}  // namespace shardrun::device
