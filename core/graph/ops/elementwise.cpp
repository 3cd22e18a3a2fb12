#include "core/graph/builder.h"
#include "core/graph/ops/shapes.h"

namespace shardrun::graph {
namespace {

/// b is broadcast over the leading dimensions of a that it lacks.
ShardingRule add_rule(const Attributes&, const Operands& inputs) {
  const std::size_t b = rank(inputs, 1);
  const std::size_t l = leading(inputs, 0, b);
  ShardingRule rule = parse_rule(fmt::format("l*{} b*{}, b*{} -> l*{} b*{}", l, b, b, l, b));
  rule.linearity = Linearity::together;
  return rule;
}

ValueId add_gradient(FunctionBuilder& builder, const GradientRequest& request) {
  const std::size_t kept = builder.type(request.inputs[1]).shape.size();
  if (request.input == 0 || kept == builder.type(request.inputs[0]).shape.size()) {
    return request.output_gradients[0];
  }
  return builder.call("sum_leading", {request.output_gradients[0]}, {{"keep", static_cast<std::int64_t>(kept)}});
}

ShardingRule same_rule(const Attributes&, const Operands& inputs) { return elementwise_rule(inputs, 1); }

ShardingRule sum_rule(const Attributes&, const Operands& inputs) {
  ShardingRule rule = elementwise_rule(inputs, inputs.size());
  rule.linearity = Linearity::together;
  return rule;
}

ValueId add_n_gradient(FunctionBuilder&, const GradientRequest& request) { return request.output_gradients[0]; }

ShardingRule linear_rule(const Attributes&, const Operands& inputs) {
  return linear_in(elementwise_rule(inputs, 1), {0});
}

ValueId negate_gradient(FunctionBuilder& builder, const GradientRequest& request) {
  return builder.call("negate", {request.output_gradients[0]});
}

ShardingRule multiply_rule(const Attributes&, const Operands& inputs) {
  return linear_in(elementwise_rule(inputs, 2), {0, 1});
}

ValueId multiply_gradient(FunctionBuilder& builder, const GradientRequest& request) {
  return builder.call("multiply", {request.output_gradients[0], request.inputs[1 - request.input]});
}

ValueId linear_combination_gradient(FunctionBuilder& builder, const GradientRequest& request) {
  return builder.call("linear_combination", {request.output_gradients[0]},
                      {{"coefficients", std::vector<double>{request.attributes.reals("coefficients")[request.input]}}});
}

std::int64_t linear_combination_flops(const OpShape& shape) {
  return (2 * static_cast<std::int64_t>(shape.inputs.size()) - 1) * element_count(shape.outputs[0]);
}

ValueId sin_gradient(FunctionBuilder& builder, const GradientRequest& request) {
  return builder.call("multiply", {request.output_gradients[0], builder.call("cos", {request.inputs[0]})});
}

ValueId cos_gradient(FunctionBuilder& builder, const GradientRequest& request) {
  return builder.call(
      "negate", {builder.call("multiply", {request.output_gradients[0], builder.call("sin", {request.inputs[0]})})});
}

ShardingRule constant_rule(const Attributes&, const Operands&) { return parse_rule("-> ."); }

/// Gives a scalar the shape of another operand, which is not read.
ShardingRule broadcast_rule(const Attributes&, const Operands& inputs) {
  const std::size_t a = rank(inputs, 1);
  return linear_in(parse_rule(fmt::format("., a*{} -> a*{}", a, a)), {0});
}

const RegisterOp add(
    {.name = "add", .rule = add_rule, .gradient = add_gradient, .in_place = {{0, 0}, {0, 1}}, .cheap = true});
const RegisterOp add_n({.name = "add_n",
                        .rule = sum_rule,
                        .gradient = add_n_gradient,
                        .in_place = {{0, 0}},
                        .cheap = true,
                        .variadic_sum = true});
const RegisterOp negate(
    {.name = "negate", .rule = linear_rule, .gradient = negate_gradient, .in_place = {{0, 0}}, .cheap = true});
const RegisterOp multiply(
    {.name = "multiply", .rule = multiply_rule, .gradient = multiply_gradient, .in_place = {{0, 0}}, .cheap = true});
const RegisterOp linear_combination({.name = "linear_combination",
                                     .rule = sum_rule,
                                     .gradient = linear_combination_gradient,
                                     .flops = linear_combination_flops,
                                     .in_place = {{0, 0}},
                                     .cheap = true});
/// Writes of state that nothing else could fuse: state = value, or += value.
const RegisterOp copy({.name = "copy", .rule = linear_rule, .accumulates = true});
const RegisterOp sin({.name = "sin", .rule = same_rule, .gradient = sin_gradient, .in_place = {{0, 0}}, .cheap = true});
const RegisterOp cos({.name = "cos", .rule = same_rule, .gradient = cos_gradient, .in_place = {{0, 0}}, .cheap = true});
const RegisterOp constant({.name = "constant", .rule = constant_rule});
const RegisterOp broadcast_scalar({.name = "broadcast_scalar", .rule = broadcast_rule});

}  // namespace
}  // namespace shardrun::graph
