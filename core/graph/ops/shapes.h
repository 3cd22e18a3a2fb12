#pragma once

#include <fmt/format.h>

#include <string>
#include <vector>

#include "core/graph/op.h"

// Shared by the declarations of ops: ranks, and rules for operands with any number of leading dimensions.

namespace shardrun::graph {

using Operands = std::vector<TensorType>;

/// The rank of an operand; 0 if there are too few operands (infer_types then reports that).
[[nodiscard]] inline std::size_t rank(const Operands& operands, std::size_t i) noexcept {
  return i < operands.size() ? operands[i].shape.size() : 0;
}

/// Number of leading dimensions, without the last `trailing`.
[[nodiscard]] inline std::size_t leading(const Operands& operands, std::size_t i, std::size_t trailing) noexcept {
  return rank(operands, i) > trailing ? rank(operands, i) - trailing : 0;
}

/// A pass-through factor per dimension, the same in all operands and the result.
[[nodiscard]] inline ShardingRule elementwise_rule(const Operands& operands, std::size_t count) {
  const std::string dimensions = fmt::format("a*{}", rank(operands, 0));
  std::string text = dimensions;
  for (std::size_t i = 1; i < count; ++i) {
    text += "," + dimensions;
  }
  return parse_rule(text + "->" + dimensions);
}

[[nodiscard]] inline ShardingRule linear_in(ShardingRule rule, std::vector<std::size_t> operands) {
  rule.linearity = Linearity::each;
  rule.linear = std::move(operands);
  return rule;
}

/// A multiple of the operand's elements: the FLOPs of ops with a cost per element.
template <int per_element, std::size_t operand = 0>
[[nodiscard]] std::int64_t flops_per_element(const OpShape& shape) {
  return per_element * element_count(shape.inputs[operand]);
}

}  // namespace shardrun::graph
