#pragma once

#include <string>
#include <string_view>

namespace shardrun::graph {

/// The ops that every model can call, from their declarations; with `model`, those that this one brings. For a
/// terminal.
[[nodiscard]] std::string op_reference(std::string_view model = {});

/// The same in Markdown. Without `model` it is the page docs/ops.md.
[[nodiscard]] std::string op_reference_markdown(std::string_view model = {});

}  // namespace shardrun::graph
