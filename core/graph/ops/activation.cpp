#include "core/graph/builder.h"
#include "core/graph/ops/shapes.h"

namespace shardrun::graph {
namespace {

ShardingRule gelu_rule(const Attributes&, const Operands& inputs) {
  require_reals("gelu", inputs);
  return elementwise_rule(inputs, 1);
}

ShardingRule activation_gradient_rule(const Attributes&, const Operands& inputs) {
  return linear_in(elementwise_rule(inputs, 2), {0});
}

ValueId gelu_gradient(FunctionBuilder& builder, const GradientRequest& request) {
  return builder.call("gelu_gradient", {request.output_gradients[0], request.inputs[0]},
                      {{"form", request.attributes.text("form")}});
}

ShardingRule dropout_rule(const Attributes& attributes, const Operands& inputs) {
  require_reals("dropout", inputs);
  if (const double rate = attributes.real("rate"); rate < 0 || rate >= 1) {
    throw Error(ErrorCode::shape_mismatch,
                fmt::format("op dropout: rate is {}, expected at least 0 and below 1", rate));
  }
  return linear_in(elementwise_rule(inputs, 1), {0});
}

/// Draws the mask again from its counters instead of keeping it.
ValueId dropout_gradient(FunctionBuilder& builder, const GradientRequest& request) {
  return builder.call("dropout", {request.output_gradients[0]},
                      {{"rate", request.attributes.real("rate")}, {"stream", request.attributes.text("stream")}});
}

/// Gaussian error linear unit (Hendrycks & Gimpel 2016, arXiv:1606.08415); form erf (exact) or tanh (approximate).
const RegisterOp gelu({.name = "gelu",
                       .help = "x times the normal distribution function of x",
                       .attributes = {AttributeSpec::text("form", "erf: exact; tanh: approximate", {"tanh", "erf"})},
                       .rule = gelu_rule,
                       .gradient = gelu_gradient,
                       .flops = flops_per_element<12>,
                       .in_place = {{0, 0}},
                       .cheap = true,
                       .example = {.attributes = {{"form", "erf"}}, .operands = {example({2, 3})}}});
const RegisterOp gelu_backward(
    {.name = "gelu_gradient", .rule = activation_gradient_rule, .flops = flops_per_element<20>, .in_place = {{0, 0}}});

/// Zeroes elements at random and scales up the rest (Srivastava et al. 2014). Dimension 0 is the batch: random numbers
/// are keyed by the global sample index and the index within the sample.
const RegisterOp dropout(
    {.name = "dropout",
     .help = "x / (1 - rate), with a random share `rate` of its elements zero; dimension 0 is the batch",
     .attributes = {AttributeSpec::real("rate", "between 0 and 1"),
                    AttributeSpec::text("stream", "the key of the random numbers")},
     .rule = dropout_rule,
     .gradient = dropout_gradient,
     .in_place = {{0, 0}},
     .cheap = true,
     .example = {.attributes = {{"rate", 0.1}, {"stream", "dropout"}}, .operands = {example({2, 3})}}});

}  // namespace
}  // namespace shardrun::graph
