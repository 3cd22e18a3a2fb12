#include <numeric>

#include "core/graph/ops/shapes.h"
#include "core/graph/stored_weights.h"

// Products and tables of weights in blocks: 32 consecutive int8 elements of a row share a float16 scale. The last
// `groups.size()` dimensions of the weights make a row. groups[d] indices of the row's dimension d share one index of
// the scales. The product of all groups is 32, so that a scale serves 32 consecutive elements.

namespace shardrun::graph {
namespace {

/// Throws Error{shape_mismatch} unless operands 1 and 2 are weights in blocks and their scales.
void require_blocks(std::string_view op, const std::vector<std::int64_t>& groups, const Operands& inputs) {
  if (inputs.size() != 3) {
    return;  // infer_types() throws
  }
  const TensorType& weights = inputs[1];
  const TensorType& scales = inputs[2];
  bool fits = weights.dtype == DType::i8 && scales.dtype == DType::f16 && weights.shape.size() == scales.shape.size() &&
              weights.shape.size() >= groups.size();
  for (std::size_t d = 0; fits && d < groups.size(); ++d) {
    const std::size_t dim = weights.shape.size() - groups.size() + d;
    fits = scales.shape[dim] == (weights.shape[dim] + groups[d] - 1) / groups[d];
  }
  if (!fits) {
    throw Error(ErrorCode::shape_mismatch, fmt::format("op {}: {} are not the scales of weights {} in groups of {}", op,
                                                       to_string(scales), to_string(weights), fmt::join(groups, ", ")));
  }
}

/// Lets the scales be read in groups. The last dimensions of operands 1 and 2 belong to the same factors.
void add_groups(ShardingRule& rule, const std::vector<std::int64_t>& groups, const Operands& inputs) {
  for (std::size_t d = 0; d < groups.size() && inputs.size() == 3; ++d) {
    if (groups[d] > 1) {
      const std::size_t dim = rank(inputs, 2) - groups.size() + d;
      rule.windows.push_back({2, dim, {.divisor = groups[d], .first = 1 - groups[d]}});
    }
  }
}

/// Activations are rounded in blocks, too. So a row is split between blocks only.
ShardingRule block_matmul_rule(const Attributes& attributes, const Operands& inputs) {
  const std::vector<std::int64_t>& groups = attributes.integers("groups");
  require_real("block_matmul", inputs, 0);
  require_blocks("block_matmul", groups, inputs);
  const std::size_t k = groups.size();
  const std::size_t l = leading(inputs, 0, k);
  const std::size_t n = leading(inputs, 1, k);
  const std::string reduced = fmt::format("k*{}", k);
  ShardingRule rule =
      parse_rule(fmt::format("l*{0} k*{2}, n*{1} k*{2}, n*{1} k*{2} -> l*{0} n*{1}", l, n, k), {.reduced = reduced});
  std::int64_t inner = 1;
  for (std::size_t d = k; d-- > 0 && rank(inputs, 1) >= k;) {
    rule.factors[rule.inputs[1][n + d]].unit = block_elements / std::gcd(block_elements, inner);
    inner *= inputs[1].shape[n + d];
  }
  add_groups(rule, groups, inputs);
  return rule;
}

std::int64_t block_matmul_flops(const OpShape& shape) {
  std::int64_t inner = 1;
  const TensorType& weights = shape.inputs[1];
  for (std::size_t d = shape.attributes.integers("groups").size(); d > 0; --d) {
    inner *= weights.shape[weights.shape.size() - d];
  }
  return 2 * inner * element_count(shape.outputs[0]);
}

ShardingRule block_embedding_rule(const Attributes& attributes, const Operands& inputs) {
  const std::vector<std::int64_t>& groups = attributes.integers("groups");
  require_integers("block_embedding", inputs, 0);
  require_blocks("block_embedding", groups, inputs);
  const std::size_t l = rank(inputs, 0);
  ShardingRule rule = parse_rule(fmt::format("l*{}, v e, v e -> l*{} e", l, l), {.picked = "v"});
  rule.dtypes = {DType::f32};
  add_groups(rule, groups, inputs);
  return rule;
}

/// x [L, K...], weights [N..., K...], scales -> y [L, N...]
const RegisterOp block_matmul({.name = "block_matmul",
                               .attributes = {AttributeSpec::integers("groups",
                                                                      "indices for each index of the scales")},
                               .rule = block_matmul_rule,
                               .stops_gradient = true,
                               .flops = block_matmul_flops});

/// tokens [L], weights [V, E], scales -> y [L, E]
const RegisterOp block_embedding({.name = "block_embedding",
                                  .attributes = {AttributeSpec::integers("groups",
                                                                         "indices for each index of the scales")},
                                  .rule = block_embedding_rule,
                                  .stops_gradient = true});

}  // namespace
}  // namespace shardrun::graph
