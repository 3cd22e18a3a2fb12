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

/// What happens to an op when one of its factors is sharded (the factor rules of Shardy).
enum class FactorClass : std::uint8_t {
  pass_through,  ///< each shard computes its part of the results by itself
  reduced,       ///< each shard computes a part of a sum (or max, or min): results that lack the factor are partial
  whole,         ///< every shard needs all of the factor
};

using shardrun::Reduction;

/// One factor: a loop of the op. Dimensions of operands and results are instances of factors.
struct Factor {
  std::string name = {};
  FactorClass kind = FactorClass::pass_through;
  Reduction reduction = Reduction::sum;  ///< of a reduced factor
  std::int64_t size = 0;                 ///< from the operands; given if no operand has the factor itself
  std::string axis = {};                 ///< as for size
};

using FactorId = Id<struct FactorTag>;

/// How a partial operand may pass through an op without being reduced first.
enum class Linearity : std::uint8_t {
  none,      ///< it may not
  each,      ///< linear in each operand of `linear`: the result is partial as that operand is
  together,  ///< linear in all operands jointly: partial only if all are partial over the same mesh axes
};

/// A dimension of an operand that is not its factor itself: index i of the factor reads a window of it. If the factor
/// is split, a shard needs an interval of the dimension: its own part and edges of its neighbours' (the halo).
/// Or a dimension of a result: index i of the factor adds to a window of it. If the factor is split, a shard makes an
/// interval, and several shards' intervals are to be added where they overlap.
struct WindowedDimension {
  std::size_t operand = 0;  ///< or result
  std::size_t dim = 0;
  Window window = {};
};

/// The loops of an op, and which loop each dimension of its operands and results is: `inputs[i][d]`, `outputs[i][d]`.
struct ShardingRule {
  IdVector<FactorId, Factor> factors;
  std::vector<std::vector<FactorId>> inputs;
  std::vector<std::vector<FactorId>> outputs;
  std::vector<WindowedDimension> windows;
  /// Of results. Some operand reads the same factor through the same window; that dimension gives the size and axis.
  std::vector<WindowedDimension> result_windows = {};
  Linearity linearity = Linearity::none;
  std::vector<std::size_t> linear;  ///< operands of Linearity::each
  /// The element type of each result; none: the type of the first operand with real numbers. Empty: none for all.
  std::vector<std::optional<DType>> dtypes;

  /// The default id if there is none.
  [[nodiscard]] FactorId find(std::string_view factor) const noexcept;
  /// Null: the dimension is its factor itself.
  [[nodiscard]] const Window* window(std::size_t operand, std::size_t dim) const noexcept;
  [[nodiscard]] const Window* result_window(std::size_t result, std::size_t dim) const noexcept;
  /// Whether some operand reads the factor through a window.
  [[nodiscard]] bool is_windowed(FactorId factor) const noexcept;
};

/// Parses einsum-like text: "i k, k j -> i j". Commas separate operands, spaces dimensions. "a*3" stands for three
/// factors a0 a1 a2, so that one rule serves every rank. A scalar is ".".
[[nodiscard]] ShardingRule parse_rule(std::string_view text);

/// Classes of a rule's factors: `reduced` and `whole` name factors (or "a*3" groups), separated by spaces.
struct FactorClasses {
  std::string_view reduced = {};
  std::string_view whole = {};
};
[[nodiscard]] ShardingRule parse_rule(std::string_view text, const FactorClasses& classes);

/// Fills sizes and axis names of the factors from the operands and returns the results' types. A result whose element
/// type the rule leaves open has f32 if no operand holds real numbers. Throws Error{shape_mismatch} naming `what`, the
/// operands and the factor.
[[nodiscard]] std::vector<TensorType> infer_types(ShardingRule& rule, const std::vector<TensorType>& operands,
                                                  const std::string& what);

/// "b t k, k n -> b t n; reduced k", "n c 2l[-1..1], o c k -> n o l; reduced c; whole k"
[[nodiscard]] std::string to_string(const ShardingRule& rule);

}  // namespace shardrun::graph
