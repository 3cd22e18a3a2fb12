#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/base/id.h"
#include "core/base/reduction.h"
#include "core/base/window.h"
#include "core/graph/tensor_type.h"

namespace shardrun::graph {

/// How an op behaves if one of its factors is split (the factor rules of Shardy).
enum class FactorClass : std::uint8_t {
  pass_through,  ///< each shard computes its part of the results by itself
  reduced,       ///< each shard computes part of a sum, max or min: results that lack the factor are partial
  whole,         ///< each shard needs the whole factor, so it is not split
};

using shardrun::Reduction;

/// A factor: one of the op's loops. Each dimension of an operand or result belongs to a factor.
struct Factor {
  std::string name = {};
  FactorClass kind = FactorClass::pass_through;
  Reduction reduction = Reduction::sum;  ///< how a reduced factor is reduced
  std::int64_t size = 0;                 ///< from an operand; declared if no operand has the factor without a window
  std::int64_t unit = 1;                 ///< it is split only at multiples of this
  std::string axis = {};                 ///< axis name; comes from the same operand as the size
  /// For a sum of which an index picks one term, and all other terms are 0. Such a sum is exact in any order, up to the
  /// sign of zero.
  bool is_picked = false;
};

/// Whether adding up partial sums over the factor can give another number than adding all terms in one sum. (+0 and −0
/// are the same number.)
[[nodiscard]] inline bool rounds_sum(const Factor& factor) noexcept {
  return factor.kind == FactorClass::reduced && factor.reduction == Reduction::sum && !factor.is_picked;
}

using FactorId = Id<struct FactorTag>;

/// Whether a partial operand can pass through an op without being reduced first.
enum class Linearity : std::uint8_t {
  none,      ///< it cannot: it is reduced first
  each,      ///< linear in each operand of `linear`: if that operand is partial, so is the result
  together,  ///< linear in all operands jointly: partial only if all are partial over the same mesh axes
};

/// A dimension that an op reads or writes through a window of a factor, instead of index by index.
/// In an operand: index i of the factor reads a window of the dimension. If the factor is split, a shard reads an
/// interval: its own part and the edges of its neighbours' parts (the halo).
/// In a result: index i of the factor adds to a window of the dimension. If the factor is split, a shard computes an
/// interval, and where shards' intervals overlap their values are added.
struct WindowedDimension {
  std::size_t operand = 0;  ///< number of the operand or result
  std::size_t dim = 0;
  Window window = {};
};

/// The loops (factors) of an op. `inputs[i][d]` is the loop of dimension d of operand i, and `outputs[i][d]` the loop
/// of dimension d of result i.
struct ShardingRule {
  IdVector<FactorId, Factor> factors;
  std::vector<std::vector<FactorId>> inputs;
  std::vector<std::vector<FactorId>> outputs;
  std::vector<WindowedDimension> windows;
  /// Windows of results. Some operand reads the same factor through an equal window; its dimension gives the result's
  /// size and axis.
  std::vector<WindowedDimension> result_windows = {};
  Linearity linearity = Linearity::none;
  std::vector<std::size_t> linear;  ///< the operands meant by Linearity::each
  /// The element type of each result; nothing: that of the first real operand. Results beyond the list have that, too.
  std::vector<std::optional<DType>> dtypes;

  /// The factor of this name; the default id if there is none.
  [[nodiscard]] FactorId find(std::string_view factor) const noexcept;
  /// The window of an operand's dimension; null: the dimension is a factor itself.
  [[nodiscard]] const Window* window(std::size_t operand, std::size_t dim) const noexcept;
  [[nodiscard]] const Window* result_window(std::size_t result, std::size_t dim) const noexcept;
  /// Whether an operand reads the factor through a window.
  [[nodiscard]] bool is_windowed(FactorId factor) const noexcept;
};

/// Parses text in the style of einsum: "i k, k j -> i j". Commas separate operands, and spaces separate dimensions.
/// "a*3" stands for three factors a0 a1 a2. A scalar is ".". Throws Error{internal} if the text has no "->".
[[nodiscard]] ShardingRule parse_rule(std::string_view text);

/// Classes of a rule's factors. `reduced` and `whole` list factors, or groups such as "a*3", separated by spaces.
struct FactorClasses {
  std::string_view reduced = {};
  std::string_view whole = {};
  std::string_view picked = {};  ///< reduced factors with Factor::is_picked
};
[[nodiscard]] ShardingRule parse_rule(std::string_view text, const FactorClasses& classes);

/// Fills in the factors' sizes and axis names from the operands, and returns the types of the results. If the rule
/// leaves a result's element type open and no operand is real, the type is f32. Throws Error{shape_mismatch}, naming
/// `what` and the rule, if the operands do not fit the rule.
[[nodiscard]] std::vector<TensorType> infer_types(ShardingRule& rule, const std::vector<TensorType>& operands,
                                                  const std::string& what);

/// For example "b t k, k n -> b t n; reduced k", or "n c 2l[-1..1], o c k -> n o l; reduced c; whole k".
[[nodiscard]] std::string to_string(const ShardingRule& rule);

}  // namespace shardrun::graph
