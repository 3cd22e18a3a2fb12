#pragma once

#include <fmt/format.h>

#include <string>
#include <vector>

#include "core/graph/op.h"

// What the op declarations share: ranks, and rules for ops whose operands may have any number of leading dimensions.

namespace shardrun::graph {

using Operands = std::vector<TensorType>;

/// The rank of an operand; 0 where there are too few operands (infer_types then says so).
[[nodiscard]] inline std::size_t rank(const Operands& operands, std::size_t i) noexcept {
  return i < operands.size() ? operands[i].shape.size() : 0;
}

/// Leading dimensions when the last `trailing` are meant otherwise.
[[nodiscard]] inline std::size_t leading(const Operands& operands, std::size_t i, std::size_t trailing) noexcept {
  return rank(operands, i) > trailing ? rank(operands, i) - trailing : 0;
}

/// One pass-through factor a dimension, all operands and the result alike.
[[nodiscard]] inline ShardingRule elementwise_rule(const Operands& operands, std::size_t count) {
  const std::string dimensions = fmt::format("a*{}", rank(operands, 0));
  std::string text = dimensions;
  for (std::size_t i = 1; i < count; ++i) {
    text += "," + dimensions;
  }
  return parse_rule(text + "->" + dimensions);
}

[[nodiscard]] inline ShardingRule linear_in(ShardingRule rule, std::vector<int> operands) {
  rule.linearity = Linearity::each;
  rule.linear = std::move(operands);
  return rule;
}

/// A multiple of the operand's elements, for ops whose cost is per element.
template <int per_element, std::size_t operand = 0>
[[nodiscard]] std::int64_t flops_per_element(const OpShape& shape) {
  return per_element * element_count(shape.inputs[operand]);
}

}  // namespace shardrun::graph
