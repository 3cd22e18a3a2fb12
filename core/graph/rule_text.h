#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/graph/sharding_rule.h"

namespace shardrun::graph {

/// Parses a rule with its classes, as to_string writes it: "b t k, k n -> b t n; reduced k", "b c -> b; reduced c
/// (max)", "b* d, k d -> b* k; whole d". Here "b*" stands for the dimensions that the first operand with it has beside
/// those that are named. `operands`: of a use; those that the rule names last may be missing.
///
/// Every factor of a result is one of an operand. Every factor is reduced, whole, or in every result. Throws
/// Error{shape_mismatch}, which begins with the rule, for another text or for operands that it does not fit.
[[nodiscard]] ShardingRule rule_from_text(std::string_view text, const std::vector<TensorType>& operands);

/// Operands that the rule fits, with axes named like their factors. A group has two dimensions. Throws as
/// rule_from_text.
[[nodiscard]] std::vector<TensorType> typical_operands(
    std::string_view text, const std::function<std::int64_t(const std::string& factor)>& size);

}  // namespace shardrun::graph
