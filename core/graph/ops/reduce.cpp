#include <numeric>

#include "core/graph/builder.h"
#include "core/graph/ops/shapes.h"

namespace shardrun::graph {
namespace {

ShardingRule sum_leading_rule(const Attributes& attributes, const Operands& inputs) {
  require_reals("sum_leading", inputs);
  const std::size_t k = static_cast<std::size_t>(attributes.integer("keep"));
  const std::size_t l = leading(inputs, 0, k);
  const std::string reduced = fmt::format("l*{}", l);
  return linear_in(parse_rule(fmt::format("l*{} k*{} -> k*{}", l, k, k), {.reduced = reduced}), {0});
}

ShardingRule whole_sum_rule(const Operands& inputs) {
  require_reals("sum_all", inputs);
  const std::size_t a = rank(inputs, 0);
  const std::string reduced = fmt::format("a*{}", a);
  return float32_results(parse_rule(fmt::format("a*{} -> .", a), {.reduced = reduced}), {0});
}

ShardingRule sum_all_rule(const Attributes&, const Operands& inputs) { return linear_in(whole_sum_rule(inputs), {0}); }

ValueId sum_all_gradient(FunctionBuilder& builder, const GradientRequest& request) {
  return builder.call("broadcast_scalar", {request.output_gradients[0], request.inputs[0]},
                      {{"scale", request.attributes.real("scale")}});
}

ValueId sum_leading_gradient(FunctionBuilder& builder, const GradientRequest& request) {
  std::vector<std::int64_t> dims(leading(std::vector{builder.type(request.inputs[0])}, 0,
                                         static_cast<std::size_t>(request.attributes.integer("keep"))));
  std::iota(dims.begin(), dims.end(), 0);
  return builder.call("broadcast", {request.output_gradients[0], request.inputs[0]}, {{"dims", dims}, {"scale", 1.0}});
}

ValueId square_sum_gradient(FunctionBuilder& builder, const GradientRequest& request) {
  const ValueId spread =
      builder.call("broadcast_scalar", {request.output_gradients[0], request.inputs[0]}, {{"scale", 2.0}});
  return builder.call("multiply", {spread, request.inputs[0]});
}

ShardingRule square_sum_rule(const Attributes&, const Operands& inputs) { return whole_sum_rule(inputs); }

ShardingRule clip_scale_rule(const Attributes&, const Operands&) { return parse_rule(". -> ., ."); }

const RegisterOp sum_leading(
    {.name = "sum_leading",
     .help = "the sum of x over its leading dimensions",
     .attributes = {AttributeSpec::integer("keep", "how many trailing dimensions are kept", 0, 8)},
     .rule = sum_leading_rule,
     .gradient = sum_leading_gradient,
     .flops = flops_per_element<1>,
     .accumulates = true,
     .example = {.attributes = {{"keep", std::int64_t{1}}}, .operands = {example({2, 3, 4})}}});

const RegisterOp sum_all({.name = "sum_all",
                          .help = "scale times the sum of all elements of x",
                          .attributes = {AttributeSpec::real("scale", "a number")},
                          .rule = sum_all_rule,
                          .gradient = sum_all_gradient,
                          .flops = flops_per_element<1>,
                          .accumulates = true,
                          .example = {.attributes = {{"scale", 1.0}}, .operands = {example({2, 3})}}});

/// Sum of squares. Each element counts once, however the tensor is split.
const RegisterOp square_sum({.name = "square_sum",
                             .help = "the sum of the squares of all elements of x",
                             .rule = square_sum_rule,
                             .gradient = square_sum_gradient,
                             .flops = flops_per_element<2>,
                             .example = {.operands = {example({2, 3})}}});

/// From a squared norm: the factor that limits the norm (Pascanu et al. 2013, section 3.2), and the norm itself.
const RegisterOp clip_scale({.name = "clip_scale", .rule = clip_scale_rule});

}  // namespace
}  // namespace shardrun::graph
