#include "core/graph/ops/shapes.h"

// Optimizer steps are ops, so they are split, planned and tested like all other ops. The learning rate and the step
// number are run-time scalars. `scale` is the factor of gradient clipping; without clipping there is no such operand.

namespace shardrun::graph {
namespace {

/// Operands: the states, then the gradient, then the scale. Each state keeps its type.
ShardingRule update_rule(const Operands& inputs, std::size_t states) {
  const std::string dimensions = fmt::format("a*{}", rank(inputs, 0));
  std::string text = dimensions;
  std::string results = dimensions;
  for (std::size_t i = 1; i < states; ++i) {
    text += "," + dimensions;
    results += "," + dimensions;
  }
  const char* const scale = inputs.size() > states + 1 ? ",." : "";
  ShardingRule rule = parse_rule(fmt::format("{},{}{} -> {}", text, dimensions, scale, results));
  for (std::size_t i = 0; i < states; ++i) {
    rule.dtypes.emplace_back(inputs[i].dtype);
  }
  return rule;
}

ShardingRule adamw_rule(const Attributes&, const Operands& inputs) { return update_rule(inputs, 3); }

ShardingRule sgd_rule(const Attributes& attributes, const Operands& inputs) {
  return update_rule(inputs, attributes.real("momentum") > 0 ? 2 : 1);
}

/// Loshchilov & Hutter 2019, arXiv:1711.05101, algorithm 2. As in PyTorch, epsilon is added after bias correction.
const RegisterOp adamw(
    {.name = "adamw", .rule = adamw_rule, .flops = flops_per_element<14>, .in_place = {{0, 0}, {1, 1}, {2, 2}}});

const RegisterOp sgd({.name = "sgd", .rule = sgd_rule, .flops = flops_per_element<6>, .in_place = {{0, 0}, {1, 1}}});

}  // namespace
}  // namespace shardrun::graph
