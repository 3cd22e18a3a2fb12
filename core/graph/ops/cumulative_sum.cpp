#include "core/graph/builder.h"
#include "core/graph/ops/shapes.h"

namespace shardrun::graph {
namespace {

ShardingRule cumulative_sum_rule(const Attributes& attributes, const Operands& inputs) {
  const std::int64_t dim = attributes.integer("dim");
  require_reals("cumulative_sum", inputs);
  require_dimension("cumulative_sum", inputs, 0, dim);
  const std::size_t a = rank(inputs, 0);
  const std::string summed = fmt::format("a{}", dim);
  return linear_in(parse_rule(fmt::format("a*{} -> a*{}", a, a), {.whole = summed}), {0});
}

/// Each element is part of its own sum and all later ones, so its gradient is a cumulative sum in the other direction.
ValueId cumulative_sum_gradient(FunctionBuilder& builder, const GradientRequest& request) {
  return builder.call(
      "cumulative_sum", {request.output_gradients[0]},
      {{"dim", request.attributes.integer("dim")}, {"reverse", 1 - request.attributes.integer("reverse")}});
}

const RegisterOp cumulative_sum({.name = "cumulative_sum",
                                 .help = "for each element, the sum of x up to it along a dimension",
                                 .attributes = {AttributeSpec::integer("dim", "the dimension", 0, 7),
                                                AttributeSpec::integer("reverse", "1 for the sum from the element on",
                                                                       0, 1)},
                                 .rule = cumulative_sum_rule,
                                 .gradient = cumulative_sum_gradient,
                                 .in_place = {{0, 0}},
                                 .cheap = true,
                                 .example = {.attributes = {{"dim", std::int64_t{1}}, {"reverse", std::int64_t{0}}},
                                             .operands = {example({2, 3})}}});

}  // namespace
}  // namespace shardrun::graph
