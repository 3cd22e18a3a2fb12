#pragma once

#include <vector>

#include "core/cli/options.h"
#include "core/compile/compile.h"

namespace shardrun::cli {

/// --dump, and --rank beside it.
[[nodiscard]] std::vector<OptionSyntax> dump_options();
/// Whether --dump asks for something. Throws Error{usage} where --rank is given and nothing is dumped that differs
/// between ranks, or where there is no such rank.
[[nodiscard]] bool wants_dump(const Parsed& parsed, const job::Job& job);
/// Prints what --dump asks for. REQUIRES: wants_dump.
void dump(const Parsed& parsed, const job::Job& job, const compile::Compiled& compiled);

}  // namespace shardrun::cli
