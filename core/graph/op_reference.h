#pragma once

#include <string>
#include <string_view>

namespace shardrun::graph {

/// The documentation of ops for a terminal: the ops that every model can call or, with `model`, those that it defines.
[[nodiscard]] std::string op_reference(std::string_view model = {});

/// The documentation of ops in Markdown. Without `model` it is the page docs/ops.md.
[[nodiscard]] std::string op_reference_markdown(std::string_view model = {});

}  // namespace shardrun::graph
