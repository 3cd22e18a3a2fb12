#include "core/graph/builder.h"
#include "core/graph/ops/shapes.h"

// Cross-entropy in parts: loss = log(sum_v exp(l_v − m)) + m − l_target, with m = max_v l_v. The sum and the maximum
// over the vocabulary are reduced factors, so a split vocabulary needs no op of its own. The logits are the only tensor
// of vocabulary size; their gradient overwrites them.

namespace shardrun::graph {
namespace {

/// The maximum m only shifts the exponents. Its gradient cancels, so none is defined.
ShardingRule row_max_rule(const Attributes&, const Operands& inputs) {
  require_reals("row_max", inputs);
  const std::size_t l = leading(inputs, 0, 1);
  ShardingRule rule = parse_rule(fmt::format("l*{} v -> l*{}", l, l), {.reduced = "v"});
  rule.factors[rule.find("v")].reduction = Reduction::max;
  return float32_results(std::move(rule), {0});
}

ShardingRule terms_rule(const Attributes&, const Operands& inputs) {
  require_real("softmax_terms", inputs, 0);
  require_real("softmax_terms", inputs, 1);
  require_integers("softmax_terms", inputs, 2);
  const std::size_t l = leading(inputs, 0, 1);
  return float32_results(parse_rule(fmt::format("l*{} v, l*{}, l*{} -> l*{}, l*{}", l, l, l, l, l), {.reduced = "v"}),
                         {0, 1});
}

ValueId terms_gradient(FunctionBuilder& builder, const GradientRequest& request) {
  if (request.input != 0) {
    return {};
  }
  const auto gradient_of = [&](std::size_t result) {
    const ValueId gradient = request.output_gradients[result];
    return gradient.exists() ? gradient
                             : builder.call("linear_combination", {request.outputs[result]},
                                            {{"coefficients", std::vector<double>{0.0}}});
  };
  const ValueId of_sum = gradient_of(0);
  const ValueId of_logit = gradient_of(1);
  return builder.call("softmax_terms_gradient",
                      {request.inputs[0], request.inputs[1], request.inputs[2], of_sum, of_logit});
}

ShardingRule terms_gradient_rule(const Attributes&, const Operands& inputs) {
  const std::size_t l = leading(inputs, 0, 1);
  return parse_rule(fmt::format("l*{} v, l*{}, l*{}, l*{}, l*{} -> l*{} v", l, l, l, l, l, l));
}

ShardingRule token_loss_rule(const Attributes&, const Operands& inputs) {
  require_reals("token_loss", inputs);
  return elementwise_rule(inputs, 3);
}

ValueId token_loss_gradient(FunctionBuilder& builder, const GradientRequest& request) {
  switch (request.input) {
    case 1: return builder.call("token_loss_gradient_sum", {request.output_gradients[0], request.inputs[1]});
    case 2: return builder.call("negate", {request.output_gradients[0]});
    default: return {};
  }
}

ShardingRule sum_gradient_rule(const Attributes&, const Operands& inputs) {
  return linear_in(elementwise_rule(inputs, 2), {0});
}

ShardingRule squared_error_rule(const Attributes&, const Operands& inputs) {
  require_reals("squared_error", inputs);
  const std::size_t l = leading(inputs, 0, 1);
  return float32_results(parse_rule(fmt::format("l*{} f, l*{} f -> l*{}", l, l, l), {.reduced = "f"}), {0});
}

ValueId squared_error_gradient(FunctionBuilder& builder, const GradientRequest& request) {
  const ValueId gradient =
      builder.call("squared_error_gradient", {request.inputs[0], request.inputs[1], request.output_gradients[0]});
  return request.input == 0 ? gradient : builder.call("negate", {gradient});
}

ShardingRule squared_error_gradient_rule(const Attributes&, const Operands& inputs) {
  const std::size_t l = leading(inputs, 0, 1);
  return linear_in(parse_rule(fmt::format("l*{} f, l*{} f, l*{} -> l*{} f", l, l, l, l)), {2});
}

const RegisterOp row_max({.name = "row_max",
                          .help = "the largest element of each row, a constant for gradients",
                          .rule = row_max_rule,
                          .stops_gradient = true,
                          .flops = flops_per_element<1>,
                          .example = {.operands = {example({2, 3})}}});

/// Computes sum_v exp(l_v − m) and l_target. A shard without the target gives 0 for l_target.
const RegisterOp terms(
    {.name = "softmax_terms",
     .help = "of logits, row_max and targets: each row's sum of e^(logit - max), and the target's logit",
     .rule = terms_rule,
     .gradient = terms_gradient,
     .differentiated = 2,
     .flops = flops_per_element<3>,
     .example = {.operands = {example({2, 3}), example({2}), example({2}, DType::i32)}}});
const RegisterOp terms_backward({.name = "softmax_terms_gradient",
                                 .rule = terms_gradient_rule,
                                 .flops = flops_per_element<4>,
                                 .in_place = {{0, 0}}});

const RegisterOp token_loss({.name = "token_loss",
                             .help = "cross-entropy of each row, of row_max and the results of softmax_terms",
                             .rule = token_loss_rule,
                             .gradient = token_loss_gradient,
                             .never_negative = true,
                             .example = {.operands = {example({2}), example({2}), example({2})}}});
const RegisterOp sum_gradient({.name = "token_loss_gradient_sum", .rule = sum_gradient_rule, .in_place = {{0, 0}}});

const RegisterOp squared_error({.name = "squared_error",
                                .help = "half the squared distance of each row of x from that of y",
                                .rule = squared_error_rule,
                                .gradient = squared_error_gradient,
                                .flops = flops_per_element<3>,
                                .never_negative = true,
                                .example = {.operands = {example({2, 3}), example({2, 3})}}});
const RegisterOp squared_error_backward({.name = "squared_error_gradient",
                                         .rule = squared_error_gradient_rule,
                                         .in_place = {{0, 0}}});

}  // namespace
}  // namespace shardrun::graph
