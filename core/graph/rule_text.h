#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/graph/sharding_rule.h"

namespace shardrun::graph {

/// Parses a rule with its classes, in the form that to_string() writes: "b t k, k n -> b t n; reduced k", "b c -> b;
/// reduced c (max)", "b* d, k d -> b* k; whole d". "b*" stands for several dimensions: those of the first operand with
/// "b*" that no other name stands for. `operands`: types of the operands; the rule's last ones can be left out.
///
/// "b x[-1..1] -> b x": index x of the result reads indices x - 1 to x + 1 of the operand. "2x[0..1]" reads 2x and 2x +
/// 1, and "x/2[-1..0]" reads from (x - 1) / 2, rounded up, to x / 2, rounded down. If all operands read a factor
/// through windows, the first window gives the factor its size (windowed_size).
///
/// Every factor of a result must be one of an operand. Every factor must be reduced, or whole, or in every result.
/// Throws Error{shape_mismatch}, beginning with the rule, if the text or the operands break these conditions.
[[nodiscard]] ShardingRule rule_from_text(std::string_view text, const std::vector<TensorType>& operands);

/// The size of a factor that an operand's dimension has only through a window: the number of indices for which index *
/// stride / divisor lies within the dimension.
[[nodiscard]] std::int64_t windowed_size(const Window& window, std::int64_t dimension) noexcept;

/// Makes operands that the rule fits. Their axes are named after their factors, and a group such as "b*" gets two
/// dimensions. `size`: returns the size of a factor. Throws the errors of rule_from_text().
[[nodiscard]] std::vector<TensorType> typical_operands(
    std::string_view text, const std::function<std::int64_t(const std::string& factor)>& size);

}  // namespace shardrun::graph
