#pragma once

#include "core/cli/options.h"
#include "core/task/compile.h"

namespace shardrun::cli {

[[nodiscard]] OptionSyntax dump_option();
/// Whether --dump asked for something, which was then printed.
[[nodiscard]] bool dump(const Parsed& parsed, const task::Compiled& compiled);

}  // namespace shardrun::cli
