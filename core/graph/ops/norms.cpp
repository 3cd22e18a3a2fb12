#include "core/graph/builder.h"
#include "core/graph/ops/shapes.h"

// Layer normalisation (Ba et al. 2016, arXiv:1607.06450) over the last dimension, with gain and an optional bias.
// Root mean square normalisation (Zhang and Sennrich 2019, arXiv:1910.07467) over the last dimension, with gain.

namespace shardrun::graph {
namespace {

ShardingRule layer_norm_rule(const Attributes&, const Operands& inputs) {
  require_reals("layer_norm", inputs);
  const std::size_t l = leading(inputs, 0, 1);
  const char* bias = inputs.size() == 3 ? ", e" : "";
  return float32_results(parse_rule(fmt::format("l*{} e, e{} -> l*{} e, l*{}, l*{}", l, bias, l, l, l), {.whole = "e"}),
                         {1, 2});
}

ValueId layer_norm_gradient(FunctionBuilder& builder, const GradientRequest& request) {
  const ValueId gradient = request.output_gradients[0];
  const ValueId mean = request.outputs[1];
  const ValueId deviation = request.outputs[2];
  switch (request.input) {
    case 0:
      return builder.call("layer_norm_gradient_input",
                          {gradient, request.inputs[0], request.inputs[1], mean, deviation});
    case 1: return builder.call("layer_norm_gradient_gain", {gradient, request.inputs[0], mean, deviation});
    default: return builder.call("sum_leading", {gradient}, {{"keep", std::int64_t{1}}});
  }
}

ShardingRule gradient_input_rule(const Attributes&, const Operands& inputs) {
  const std::size_t l = leading(inputs, 0, 1);
  return linear_in(parse_rule(fmt::format("l*{} e, l*{} e, e, l*{}, l*{} -> l*{} e", l, l, l, l, l), {.whole = "e"}),
                   {0});
}

ShardingRule gradient_gain_rule(const Attributes&, const Operands& inputs) {
  const std::size_t l = leading(inputs, 0, 1);
  const std::string reduced = fmt::format("l*{}", l);
  return linear_in(parse_rule(fmt::format("l*{} e, l*{} e, l*{}, l*{} -> e", l, l, l, l), {.reduced = reduced}), {0});
}

const RegisterOp layer_norm(
    {.name = "layer_norm",
     .help = "(x - mean) / deviation * gain + bias by rows, mean, 1 / deviation; bias may be left out",
     .attributes = {AttributeSpec::real("epsilon", "added to the variance")},
     .rule = layer_norm_rule,
     .gradient = layer_norm_gradient,
     .flops = flops_per_element<8>,
     .cheap = true,
     .example = {.attributes = {{"epsilon", 1e-5}}, .operands = {example({2, 3}), example({3}), example({3})}}});

const RegisterOp gradient_input({.name = "layer_norm_gradient_input",
                                 .rule = gradient_input_rule,
                                 .flops = flops_per_element<12>,
                                 .in_place = {{0, 0}}});

const RegisterOp gradient_gain({.name = "layer_norm_gradient_gain",
                                .rule = gradient_gain_rule,
                                .flops = flops_per_element<4>,
                                .accumulates = true});

ShardingRule rms_norm_rule(const Attributes&, const Operands& inputs) {
  require_reals("rms_norm", inputs);
  const std::size_t l = leading(inputs, 0, 1);
  return float32_results(parse_rule(fmt::format("l*{} e, e -> l*{} e, l*{}", l, l, l), {.whole = "e"}), {1});
}

ValueId rms_norm_gradient(FunctionBuilder& builder, const GradientRequest& request) {
  const ValueId gradient = request.output_gradients[0];
  const ValueId rms = request.outputs[1];
  if (request.input == 0) {
    return builder.call("rms_norm_gradient_input", {gradient, request.inputs[0], request.inputs[1], rms});
  }
  return builder.call("rms_norm_gradient_gain", {gradient, request.inputs[0], rms});
}

ShardingRule rms_gradient_input_rule(const Attributes&, const Operands& inputs) {
  const std::size_t l = leading(inputs, 0, 1);
  return linear_in(parse_rule(fmt::format("l*{} e, l*{} e, e, l*{} -> l*{} e", l, l, l, l), {.whole = "e"}), {0});
}

ShardingRule rms_gradient_gain_rule(const Attributes&, const Operands& inputs) {
  const std::size_t l = leading(inputs, 0, 1);
  const std::string reduced = fmt::format("l*{}", l);
  return linear_in(parse_rule(fmt::format("l*{} e, l*{} e, l*{} -> e", l, l, l), {.reduced = reduced}), {0});
}

const RegisterOp rms_norm({.name = "rms_norm",
                           .help = "x / sqrt(mean of x^2 + epsilon) * gain by rows, and 1 / that root",
                           .attributes = {AttributeSpec::real("epsilon", "added to the mean of squares")},
                           .rule = rms_norm_rule,
                           .gradient = rms_norm_gradient,
                           .flops = flops_per_element<4>,
                           .cheap = true,
                           .example = {.attributes = {{"epsilon", 1e-5}},
                                       .operands = {example({2, 3}), example({3})}}});

const RegisterOp rms_gradient_input({.name = "rms_norm_gradient_input",
                                     .rule = rms_gradient_input_rule,
                                     .flops = flops_per_element<8>,
                                     .in_place = {{0, 0}}});

const RegisterOp rms_gradient_gain({.name = "rms_norm_gradient_gain",
                                    .rule = rms_gradient_gain_rule,
                                    .flops = flops_per_element<3>,
                                    .accumulates = true});

}  // namespace
}  // namespace shardrun::graph
