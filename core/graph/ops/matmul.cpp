#include "core/graph/builder.h"
#include "core/graph/ops/shapes.h"

// Matrix product over the trailing dimensions of x: y[L, N…] = sum over K… of x[L, K…] · w.
// w is [K…, N…], or [N…, K…] with transpose = 1. K and N may be several dimensions, such as (heads, head_dim) and (qkv,
// heads, head_dim). So no reshape is needed that would hide an axis from the strategy that splits it.

namespace shardrun::graph {
namespace {

std::size_t contracted(const Attributes& attributes) {
  return static_cast<std::size_t>(attributes.integer("contract"));
}

std::string weight_dimensions(std::int64_t transpose, std::size_t k, std::size_t n) {
  return transpose != 0 ? fmt::format("n*{} k*{}", n, k) : fmt::format("k*{} n*{}", k, n);
}

ShardingRule matmul_rule(const Attributes& attributes, const Operands& inputs) {
  require_reals("matmul", inputs);
  const std::size_t k = contracted(attributes);
  const std::size_t l = leading(inputs, 0, k);
  const std::size_t n = leading(inputs, 1, k);
  const std::string reduced = fmt::format("k*{}", k);
  return linear_in(parse_rule(fmt::format("l*{} k*{}, {} -> l*{} n*{}", l, k,
                                          weight_dimensions(attributes.integer("transpose"), k, n), l, n),
                              {.reduced = reduced}),
                   {0, 1});
}

std::int64_t matmul_flops(const OpShape& shape) {
  std::int64_t inner = 1;
  const TensorType& x = shape.inputs[0];
  for (std::size_t d = x.shape.size() - contracted(shape.attributes); d < x.shape.size(); ++d) {
    inner *= x.shape[d];
  }
  return 2 * inner * element_count(shape.outputs[0]);
}

ValueId matmul_gradient(FunctionBuilder& builder, const GradientRequest& request) {
  const ValueId gradient = request.output_gradients[0];
  const std::int64_t transpose = request.attributes.integer("transpose");
  const std::int64_t contract = request.attributes.integer("contract");
  if (request.input == 1) {
    return builder.call("matmul_gradient_weights", {request.inputs[0], gradient},
                        {{"contract", contract}, {"transpose", transpose}});
  }
  const std::int64_t outputs = static_cast<std::int64_t>(builder.type(request.inputs[1]).shape.size()) - contract;
  return builder.call("matmul", {gradient, request.inputs[1]}, {{"contract", outputs}, {"transpose", 1 - transpose}});
}

ShardingRule gradient_weights_rule(const Attributes& attributes, const Operands& inputs) {
  const std::size_t k = contracted(attributes);
  const std::size_t l = leading(inputs, 0, k);
  const std::size_t n = leading(inputs, 1, l);
  const std::string reduced = fmt::format("l*{}", l);
  return linear_in(parse_rule(fmt::format("l*{} k*{}, l*{} n*{} -> {}", l, k, l, n,
                                          weight_dimensions(attributes.integer("transpose"), k, n)),
                              {.reduced = reduced}),
                   {0, 1});
}

std::int64_t gradient_weights_flops(const OpShape& shape) {
  std::int64_t rows = 1;
  const TensorType& x = shape.inputs[0];
  for (std::size_t d = 0; d < x.shape.size() - contracted(shape.attributes); ++d) {
    rows *= x.shape[d];
  }
  return 2 * rows * element_count(shape.outputs[0]);
}

const RegisterOp matmul(
    {.name = "matmul",
     .help = "the product of x and w over the last dimensions of x",
     .attributes = {AttributeSpec::integer("contract", "how many dimensions of x are summed over", 0, 8),
                    AttributeSpec::integer("transpose", "1 if they are the last ones of w, 0 if the first", 0, 1),
                    fixed_order_spec()},
     .rule = matmul_rule,
     .gradient = matmul_gradient,
     .flops = matmul_flops,
     .accumulates = true,
     .example = {.attributes = {{"contract", std::int64_t{1}}, {"transpose", std::int64_t{0}}},
                 .operands = {example({2, 3, 4}), example({4, 5})}}});

const RegisterOp matmul_gradient_weights({.name = "matmul_gradient_weights",
                                          .rule = gradient_weights_rule,
                                          .flops = gradient_weights_flops,
                                          .accumulates = true});

}  // namespace
}  // namespace shardrun::graph
