#include <memory>

#include "core/device/cpu/bf16_product.h"
#include "core/device/cpu/prepared_product.h"
#include "core/device/device.h"

namespace shardrun::device::cpu {
namespace {

/// What a product needs to know of a tensor, with or without memory.
struct Tensor {
  explicit Tensor(const TensorView& view)
      : shape(view.shape.data()), rank(view.rank), dtype(view.dtype), data(static_cast<std::byte*>(view.data)) {}
  explicit Tensor(const graph::TensorType& type)
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

/// The matrices of an op's operands and result.
using ProductOf = Product(const graph::Attributes& attributes, const Tensor& x, const Tensor& second, const Tensor& y);

/// x: [L, K...]   w: [K..., N...], or [N..., K...] when transposed   y: [L, N...]
Product matmul(const graph::Attributes& attributes, const Tensor& x, const Tensor& w, const Tensor& y) {
  const bool transposed = attributes.integer("transpose") != 0;
  const std::uint32_t lead = x.rank - static_cast<std::uint32_t>(attributes.integer("contract"));
  const std::int64_t k = x.extent(lead, x.rank);
  const std::int64_t n = y.extent(lead, y.rank);
  return {x.extent(0, lead), n, k, x.matrix(k), w.matrix(transposed ? k : n, transposed), y.matrix(n)};
}

/// x: [L, K...]   dy: [L, N...]   dw: [K..., N...] = xᵀ dy, or [N..., K...] = dyᵀ x when transposed
Product gradient_weights(const graph::Attributes& attributes, const Tensor& x, const Tensor& dy, const Tensor& dw) {
  const std::uint32_t lead = x.rank - static_cast<std::uint32_t>(attributes.integer("contract"));
  const std::int64_t tokens = x.extent(0, lead);
  const std::int64_t width = x.extent(lead, x.rank);
  const std::int64_t outputs = dy.extent(lead, dy.rank);
  if (attributes.integer("transpose") != 0) {
    return {outputs, width, tokens, dy.matrix(outputs, true), x.matrix(width), dw.matrix(width)};
  }
  return {width, outputs, tokens, x.matrix(width, true), dy.matrix(outputs), dw.matrix(outputs)};
}

template <ProductOf product_of>
void run(const KernelCall& call) {
  const Product product =
      product_of(call.attributes, Tensor(call.inputs[0]), Tensor(call.inputs[1]), Tensor(call.outputs[0]));
  if (in_floats(product)) {
    multiply_floats(product, call.accumulate, call.threads);
  } else {
    static_cast<PreparedProduct*>(call.prepared)->run(product, call.accumulate, call.threads, call.scratch.data());
  }
}

template <ProductOf product_of>
Product product_of_types(const graph::OpShape& shape) {
  return product_of(shape.attributes, Tensor(shape.inputs[0]), Tensor(shape.inputs[1]), Tensor(shape.outputs[0]));
}

template <ProductOf product_of>
std::size_t scratch_bytes(const graph::OpShape& shape, int threads) {
  const Product product = product_of_types<product_of>(shape);
  return in_floats(product) ? 0 : PreparedProduct(product).scratch_bytes(threads);
}

template <ProductOf product_of>
std::shared_ptr<void> prepare(const graph::OpShape& shape) {
  const Product product = product_of_types<product_of>(shape);
  return in_floats(product) ? nullptr : std::make_shared<PreparedProduct>(product);
}

template <ProductOf product_of>
constexpr Kernel kernel = {run<product_of>, scratch_bytes<product_of>, prepare<product_of>, bf16_products};

const RegisterKernel register_matmul("cpu", "matmul", kernel<matmul>);
const RegisterKernel register_gradient("cpu", "matmul_gradient_weights", kernel<gradient_weights>);

}  // namespace
}  // namespace shardrun::device::cpu
