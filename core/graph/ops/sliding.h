#pragma once

#include <string>
#include <vector>

#include "core/graph/ops/shapes.h"
#include "core/graph/sliding.h"

// Helpers for ops that slide along the last dimensions of an operand.

namespace shardrun::graph {

/// The sliding of each dimension. Throws Error{shape_mismatch} if the attributes do not describe `sizes.size()`
/// dimensions, or if the last dimensions of `operand` are too small.
inline std::vector<Sliding> check_sliding(std::string_view op, const Attributes& attributes,
                                          const std::vector<std::int64_t>& sizes, const TensorType& operand) {
  const std::size_t count = sizes.size();
  const auto wrong = [&](const std::string& what) {
    throw Error(ErrorCode::shape_mismatch, fmt::format("op {}: {} (operand {})", op, what, to_string(operand)));
  };
  const auto check = [&](std::string_view name, std::size_t expected, std::int64_t least) {
    const std::vector<std::int64_t>& values = attributes.integers(name);
    if (values.size() != expected || std::ranges::any_of(values, [&](std::int64_t v) { return v < least; })) {
      wrong(fmt::format("{} needs {} integers of at least {} for {} dimensions that slide", name, expected, least,
                        count));
    }
  };
  check("strides", count, 1);
  check("padding", 2 * count, 0);
  if (attributes.has("dilation")) {
    check("dilation", count, 1);
  }
  std::vector<Sliding> slidings = sliding_of(attributes, sizes);
  for (std::size_t d = 0; d < count; ++d) {
    const std::int64_t size = operand.shape[operand.shape.size() - count + d];
    if (sizes[d] < 1 || size + slidings[d].low + slidings[d].high < slidings[d].reach()) {
      wrong(fmt::format("a window of {} does not fit into dimension {} of {} with its padding", slidings[d].reach(),
                        operand.shape.size() - count + d, size));
    }
  }
  return slidings;
}

/// The sizes of the last `count` dimensions.
[[nodiscard]] inline std::vector<std::int64_t> last_sizes(const TensorType& type, std::size_t count) {
  return {type.shape.end() - static_cast<std::ptrdiff_t>(count), type.shape.end()};
}

/// Lets the last dimensions of an operand be read through these windows. `sizes`: their sizes in the result.
inline void slide(ShardingRule& rule, const Operands& inputs, std::size_t operand, const std::vector<Window>& windows,
                  const std::vector<std::int64_t>& sizes) {
  for (std::size_t d = 0; d < windows.size(); ++d) {
    add_window(rule, inputs, operand, rank(inputs, operand) - windows.size() + d, windows[d], sizes[d]);
  }
}

/// These return, for each sliding dimension, its window, the window's transpose, or the size of the result along it.
[[nodiscard]] inline std::vector<Window> windows_of(const std::vector<Sliding>& slidings) {
  std::vector<Window> windows;
  for (const Sliding& sliding : slidings) {
    windows.push_back(sliding.window());
  }
  return windows;
}
[[nodiscard]] inline std::vector<Window> transposed_windows(const std::vector<Sliding>& slidings) {
  std::vector<Window> windows;
  for (const Sliding& sliding : slidings) {
    windows.push_back(sliding.window().transposed());
  }
  return windows;
}
[[nodiscard]] inline std::vector<std::int64_t> result_sizes(const std::vector<Sliding>& slidings,
                                                            const TensorType& operand) {
  std::vector<std::int64_t> sizes = last_sizes(operand, slidings.size());
  for (std::size_t d = 0; d < sizes.size(); ++d) {
    sizes[d] = slidings[d].result_size(sizes[d]);
  }
  return sizes;
}

}  // namespace shardrun::graph
