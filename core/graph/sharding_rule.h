#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/reduction.h"
#include "core/graph/tensor_type.h"

namespace shardrun::graph {

/// What happens to an op when a factor of it is sharded (the factor rules of Shardy).
enum class FactorClass : std::uint8_t {
  pass_through,  ///< each shard computes its part of the results alone
  reduced,       ///< each shard computes a part of a sum (or max): the results are partial
  whole,         ///< every shard needs all of it
  shift,         ///< a shard needs its neighbours' edges (halo)
};

using shardrun::Reduction;

/// One factor: a loop of the op, of which dimensions of operands and results are instances.
struct Factor {
  std::string name = {};
  FactorClass kind = FactorClass::pass_through;
  Reduction reduction = Reduction::sum;  ///< of a reduced factor
  std::int64_t size = 0;                 ///< from the operands, or given where no operand has it
  std::string axis = {};                 ///< likewise
  std::int64_t offset = 0;               ///< of a shifted factor: index i of the result is made of operand's i + offset
  bool wraps = false;                    ///< of a shifted factor: past its ends it begins again; else nothing is there
};

/// How a partial operand (one whose sum is deferred) may pass through.
enum class Linearity : std::uint8_t {
  none,      ///< it must be reduced first
  each,      ///< linear in each of `linear` alone: the result is partial as that operand is
  together,  ///< linear in all operands at once: partial only where all are partial over the same mesh axes
};

/// Which loops an op has and where each stands in its operands and results.
/// `inputs[i][d]` and `outputs[i][d]` are indices into `factors`.
struct ShardingRule {
  std::vector<Factor> factors;
  std::vector<std::vector<int>> inputs;
  std::vector<std::vector<int>> outputs;
  Linearity linearity = Linearity::none;
  std::vector<int> linear;  ///< operands meant by Linearity::each

  [[nodiscard]] int find(std::string_view factor) const noexcept;
};

/// From einsum-like text: "i k, k j -> i j". Operands are separated by commas, dimensions by spaces; "a*3" stands
/// for three factors a0 a1 a2, so that an op is written once for every rank. A scalar is written ".".
[[nodiscard]] ShardingRule parse_rule(std::string_view text);

/// The same, with factors classed: `reduced`, `whole` and `shift` name factors (or "a*3" groups), separated by spaces.
struct FactorClasses {
  std::string_view reduced = {};
  std::string_view whole = {};
  std::string_view shift = {};
};
[[nodiscard]] ShardingRule parse_rule(std::string_view text, const FactorClasses& classes);

/// Fills sizes and axis names of the factors from the operands and returns the results' shapes and axes (dtype of
/// the first f32 operand, else f32). Throws Error{shape_mismatch} naming `what`, the operands and the factor.
[[nodiscard]] std::vector<TensorType> infer_types(ShardingRule& rule, const std::vector<TensorType>& operands,
                                                  const std::string& what);

/// "b t k, k n -> b t n; reduced k"
[[nodiscard]] std::string to_string(const ShardingRule& rule);

}  // namespace shardrun::graph
