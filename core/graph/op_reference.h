#pragma once

#include <string>

namespace shardrun::graph {

/// All ops that models call, from their declarations. For a terminal.
[[nodiscard]] std::string op_reference();

/// The same as the page docs/ops.md.
[[nodiscard]] std::string op_reference_markdown();

}  // namespace shardrun::graph
