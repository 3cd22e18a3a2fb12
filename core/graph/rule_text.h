#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/graph/sharding_rule.h"

namespace shardrun::graph {

/// Parses a rule with its classes, as to_string writes it: "b t k, k n -> b t n; reduced k", "b c -> b; reduced c
/// (max)", "b* d, k d -> b* k; whole d". Here "b*" stands for the dimensions of the first operand with it that are not
/// named. `operands`: of a use; the last ones of the rule may be missing.
///
/// "b x[-1..1] -> b x": index x of the result reads indices x - 1 to x + 1 of the operand. "2x[0..1]" reads 2x and 2x +
/// 1, and "x/2[-1..0]" reads from (x - 1) / 2, rounded up, to x / 2, rounded down. Unless an operand has the factor
/// itself, its first window gives it its size (windowed_size).
///
/// Every factor of a result is one of an operand. Every factor is reduced, whole, or in every result. Throws
/// Error{shape_mismatch}, which begins with the rule, for another text or for operands that it does not fit.
[[nodiscard]] ShardingRule rule_from_text(std::string_view text, const std::vector<TensorType>& operands);

/// The size of a factor that is read through a window of an operand's dimension: the indices whose
/// index * stride / divisor is in the operand.
[[nodiscard]] std::int64_t windowed_size(const Window& window, std::int64_t dimension) noexcept;

/// Operands that the rule fits, with axes named like their factors. A group has two dimensions. Throws as
/// rule_from_text.
[[nodiscard]] std::vector<TensorType> typical_operands(
    std::string_view text, const std::function<std::int64_t(const std::string& factor)>& size);

}  // namespace shardrun::graph
