#include <memory>

#include "core/device/cpu/few_rows.h"
#include "core/device/cpu/prepared_product.h"
#include "core/device/cpu/sgemm.h"
#include "core/device/device.h"
#include "core/device/op_products.h"

namespace shardrun::device::cpu {
namespace {

/// Makes the matrices of an op's operands and result.
using ProductOf = Product(const graph::Attributes& attributes, const TensorShape& x, const TensorShape& second,
                          const TensorShape& y);

template <ProductOf product_of>
void run(const KernelCall& call) {
  const Product product = product_of(call.attributes, TensorShape(call.inputs[0]), TensorShape(call.inputs[1]),
                                     TensorShape(call.outputs[0]));
  if (has_few_rows(product)) {
    multiply_few_rows(product, call.accumulate, call.threads);
  } else if (in_floats(product)) {
    multiply_floats(product, call.accumulate, call.threads);
  } else {
    static_cast<PreparedProduct*>(call.prepared)->run(product, call.accumulate, call.threads, call.scratch.data());
  }
}

template <ProductOf product_of>
Product product_of_types(const graph::OpShape& shape) {
  return product_of(shape.attributes, TensorShape(shape.inputs[0]), TensorShape(shape.inputs[1]),
                    TensorShape(shape.outputs[0]));
}

template <ProductOf product_of>
std::size_t scratch_bytes(const graph::OpShape& shape, int threads) {
  const Product product = product_of_types<product_of>(shape);
  return has_few_rows(product) || in_floats(product) ? 0 : PreparedProduct(product).scratch_bytes(threads);
}

template <ProductOf product_of>
std::shared_ptr<void> prepare(const graph::OpShape& shape) {
  const Product product = product_of_types<product_of>(shape);
  if (has_few_rows(product)) {
    return nullptr;
  }
  set_up_sgemm(product);
  return in_floats(product) ? nullptr : std::make_shared<PreparedProduct>(product);
}

template <ProductOf product_of>
constexpr Kernel kernel = {run<product_of>, scratch_bytes<product_of>, prepare<product_of>, bf16_products};

const RegisterKernel register_matmul("cpu", "matmul", kernel<product_of_matmul>);
const RegisterKernel register_gradient("cpu", "matmul_gradient_weights", kernel<product_of_weight_gradient>);

}  // namespace
}  // namespace shardrun::device::cpu
