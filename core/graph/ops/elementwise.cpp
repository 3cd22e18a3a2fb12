#include "core/base/error.h"
#include "core/graph/builder.h"
#include "core/graph/ops/shapes.h"

namespace shardrun::graph {
namespace {

ShardingRule sum_rule(const Attributes&, const Operands& inputs) {
  require_reals("add_n or linear_combination", inputs);
  ShardingRule rule = elementwise_rule(inputs, inputs.size());
  rule.linearity = Linearity::together;
  return rule;
}

ValueId add_n_gradient(FunctionBuilder&, const GradientRequest& request) { return request.output_gradients[0]; }

ShardingRule linear_rule(const Attributes&, const Operands& inputs) {
  return linear_in(elementwise_rule(inputs, 1), {0});
}

ValueId linear_combination_gradient(FunctionBuilder& builder, const GradientRequest& request) {
  return builder.call("linear_combination", {request.output_gradients[0]},
                      {{"coefficients", std::vector<double>{request.attributes.reals("coefficients")[request.input]}}});
}

ShardingRule linear_combination_rule(const Attributes& attributes, const Operands& inputs) {
  const std::size_t coefficients = attributes.reals("coefficients").size();
  if (coefficients != inputs.size() || inputs.empty()) {
    throw Error(ErrorCode::shape_mismatch,
                fmt::format("linear_combination has {} coefficients for {} operands", coefficients, inputs.size()));
  }
  return sum_rule(attributes, inputs);
}

std::int64_t linear_combination_flops(const OpShape& shape) {
  return (2 * static_cast<std::int64_t>(shape.inputs.size()) - 1) * element_count(shape.outputs[0]);
}

ShardingRule constant_rule(const Attributes&, const Operands&) { return parse_rule("-> ."); }

/// Gives a scalar the shape of another operand, whose elements are not read.
ShardingRule broadcast_rule(const Attributes&, const Operands& inputs) {
  const std::size_t a = rank(inputs, 1);
  return linear_in(parse_rule(fmt::format("., a*{} -> a*{}", a, a)), {0});
}

const RegisterOp add_n({.name = "add_n",
                        .help = "the sum of all operands",
                        .rule = sum_rule,
                        .gradient = add_n_gradient,
                        .in_place = {{0, 0}},
                        .cheap = true,
                        .variadic_sum = true,
                        .example = {.operands = {example({2, 3}), example({2, 3})}}});
const RegisterOp linear_combination({.name = "linear_combination",
                                     .help = "the sum of all operands, each times its coefficient, from left to right",
                                     .attributes = {AttributeSpec::reals("coefficients", "a number for each operand")},
                                     .rule = linear_combination_rule,
                                     .gradient = linear_combination_gradient,
                                     .flops = linear_combination_flops,
                                     .in_place = {{0, 0}},
                                     .cheap = true,
                                     .example = {.attributes = {{"coefficients", std::vector<double>{0.5, -2}}},
                                                 .operands = {example({2, 3}), example({2, 3})}}});
/// Copies its operand to a state, or adds it, where the op that makes the operand cannot write to the state itself.
const RegisterOp copy({.name = "copy", .rule = linear_rule, .accumulates = true});
const RegisterOp constant({.name = "constant",
                           .help = "a scalar",
                           .attributes = {AttributeSpec::real("value", "its number")},
                           .rule = constant_rule,
                           .example = {.attributes = {{"value", 1.0}}, .operands = {}}});
ValueId broadcast_scalar_gradient(FunctionBuilder& builder, const GradientRequest& request) {
  return request.input != 0
             ? ValueId()
             : builder.call("sum_all", {request.output_gradients[0]}, {{"scale", request.attributes.real("scale")}});
}

const RegisterOp broadcast_scalar({.name = "broadcast_scalar",
                                   .help = "scale times the scalar a, in the shape of b, which is not read",
                                   .attributes = {AttributeSpec::real("scale", "a number")},
                                   .rule = broadcast_rule,
                                   .gradient = broadcast_scalar_gradient,
                                   .example = {.attributes = {{"scale", 1.0}},
                                               .operands = {example({}), example({2, 3})}}});

}  // namespace
}  // namespace shardrun::graph
