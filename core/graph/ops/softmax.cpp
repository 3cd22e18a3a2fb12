#include "core/graph/builder.h"
#include "core/graph/ops/shapes.h"

// softmax and log_softmax over the last dimension. Their gradients are computed from their results.

namespace shardrun::graph {
namespace {

ShardingRule rule_by_rows(const char* op, const Operands& inputs) {
  require_reals(op, inputs);
  const std::size_t l = leading(inputs, 0, 1);
  return parse_rule(fmt::format("l*{} e -> l*{} e", l, l), {.whole = "e"});
}

ShardingRule softmax_rule(const Attributes&, const Operands& inputs) { return rule_by_rows("softmax", inputs); }
ShardingRule log_softmax_rule(const Attributes&, const Operands& inputs) { return rule_by_rows("log_softmax", inputs); }

ShardingRule softmax_gradient_rule(const Attributes&, const Operands& inputs) {
  const std::size_t l = leading(inputs, 0, 1);
  return linear_in(parse_rule(fmt::format("l*{} e, l*{} e -> l*{} e", l, l, l), {.whole = "e"}), {0});
}

ValueId softmax_gradient(FunctionBuilder& builder, const GradientRequest& request) {
  return builder.call("softmax_gradient", {request.output_gradients[0], request.outputs[0]});
}

ValueId log_softmax_gradient(FunctionBuilder& builder, const GradientRequest& request) {
  return builder.call("log_softmax_gradient", {request.output_gradients[0], request.outputs[0]});
}

const RegisterOp softmax({.name = "softmax",
                          .help = "exp(x) over its sum along the last dimension",
                          .rule = softmax_rule,
                          .gradient = softmax_gradient,
                          .flops = flops_per_element<5>,
                          .in_place = {{0, 0}},
                          .cheap = true,
                          .never_negative = true,
                          .example = {.operands = {example({2, 3})}}});
const RegisterOp log_softmax({.name = "log_softmax",
                              .help = "the logarithm of softmax: x - log(the sum of exp(x) along the last dimension)",
                              .rule = log_softmax_rule,
                              .gradient = log_softmax_gradient,
                              .flops = flops_per_element<5>,
                              .in_place = {{0, 0}},
                              .cheap = true,
                              .example = {.operands = {example({2, 3})}}});

const RegisterOp softmax_gradient_op({.name = "softmax_gradient",
                                      .rule = softmax_gradient_rule,
                                      .flops = flops_per_element<4>,
                                      .in_place = {{0, 0}, {0, 1}}});
const RegisterOp log_softmax_gradient_op({.name = "log_softmax_gradient",
                                          .rule = softmax_gradient_rule,
                                          .flops = flops_per_element<4>,
                                          .in_place = {{0, 0}, {0, 1}}});

}  // namespace
}  // namespace shardrun::graph
