#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/graph/op.h"

// Helpers for declarations of ops: ranks, and rules for operands with any number of leading dimensions.

namespace shardrun::graph {

using Operands = std::vector<TensorType>;

/// The number of dimensions of an operand; 0 if there are too few operands, which infer_types() then reports.
[[nodiscard]] inline std::size_t rank(const Operands& operands, std::size_t i) noexcept {
  return i < operands.size() ? operands[i].shape.size() : 0;
}

/// The number of dimensions without the last `trailing` ones.
[[nodiscard]] inline std::size_t leading(const Operands& operands, std::size_t i, std::size_t trailing) noexcept {
  return rank(operands, i) > trailing ? rank(operands, i) - trailing : 0;
}

/// One pass-through factor per dimension, the same in all operands and the result.
[[nodiscard]] inline ShardingRule elementwise_rule(const Operands& operands, std::size_t count) {
  const std::string dimensions = fmt::format("a*{}", rank(operands, 0));
  std::string text = dimensions;
  for (std::size_t i = 1; i < count; ++i) {
    text += "," + dimensions;
  }
  return parse_rule(text + "->" + dimensions);
}

/// Lets an operand's dimension be read through a window of its factor. `size`: the number of indices of the factor.
inline void add_window(ShardingRule& rule, const Operands& inputs, std::size_t operand, std::size_t dim, Window window,
                       std::int64_t size) {
  rule.windows.push_back({operand, dim, window});
  Factor& factor = rule.factors[rule.inputs[operand][dim]];
  factor.size = size;
  factor.axis = inputs[operand].axes[dim];
}

[[nodiscard]] inline ShardingRule linear_in(ShardingRule rule, std::vector<std::size_t> operands) {
  rule.linearity = Linearity::each;
  rule.linear = std::move(operands);
  return rule;
}

/// Declares results that are float32 for all types of operands: sums over many elements and statistics of rows need
/// more than 16 bits (Micikevicius et al. 2017, arXiv:1710.03740, section 3.3).
[[nodiscard]] inline ShardingRule float32_results(ShardingRule rule, const std::vector<std::size_t>& results) {
  rule.dtypes.resize(rule.outputs.size());
  for (const std::size_t result : results) {
    rule.dtypes[result] = DType::f32;
  }
  return rule;
}

/// Throws Error{shape_mismatch} if any operand has integers.
inline void require_reals(std::string_view op, const Operands& inputs) {
  const auto other = std::ranges::find_if(inputs, [](const TensorType& type) { return !is_real(type.dtype); });
  if (other != inputs.end()) {
    throw Error(ErrorCode::shape_mismatch,
                fmt::format("op {} takes real numbers, and operand {} is {}: cast it to f32 first", op,
                            other - inputs.begin(), to_string(*other)));
  }
}

/// Throws Error{shape_mismatch} if this operand has integers.
inline void require_real(std::string_view op, const Operands& inputs, std::size_t operand) {
  if (operand < inputs.size() && !is_real(inputs[operand].dtype)) {
    throw Error(ErrorCode::shape_mismatch,
                fmt::format("op {} takes real numbers as operand {}, and it is {}: cast it to f32 first", op, operand,
                            to_string(inputs[operand])));
  }
}
inline void require_integers(std::string_view op, const Operands& inputs, std::size_t operand) {
  if (operand < inputs.size() && inputs[operand].dtype != DType::i32) {
    throw Error(ErrorCode::shape_mismatch,
                fmt::format("op {} takes i32 as operand {}, and it is {}", op, operand, to_string(inputs[operand])));
  }
}

/// Throws Error{shape_mismatch} if the dimension is not one of the operand's.
inline void require_dimension(std::string_view op, const Operands& inputs, std::size_t operand, std::int64_t dim) {
  if (dim < 0 || dim >= static_cast<std::int64_t>(rank(inputs, operand))) {
    throw Error(ErrorCode::shape_mismatch,
                fmt::format("op {}: operand {} has no dimension {}{}", op, operand, dim,
                            operand < inputs.size() ? ", it is " + to_string(inputs[operand]) : ""));
  }
}

/// The type of an operand in an op's example.
[[nodiscard]] inline TensorType example(std::vector<std::int64_t> shape, DType dtype = DType::f32) {
  return {.dtype = dtype, .shape = std::move(shape), .axes = {}};
}

/// The FLOPs of an op with `per_element` FLOPs per element of the operand.
template <int per_element, std::size_t operand = 0>
[[nodiscard]] std::int64_t flops_per_element(const OpShape& shape) {
  return per_element * element_count(shape.inputs[operand]);
}

[[nodiscard]] inline AttributeSpec optional(AttributeSpec spec) {
  spec.optional = true;
  return spec;
}

[[nodiscard]] inline AttributeSpec fixed_order_spec() {
  return optional(AttributeSpec::integer(
      std::string(fixed_order),
      "1: on the cpu, the order of a sum depends on its length and on the second operand's layout alone", 0, 1));
}

}  // namespace shardrun::graph
