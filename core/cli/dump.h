#pragma once

#include <vector>

#include "core/cli/options.h"
#include "core/compile/compile.h"

namespace shardrun::cli {

/// The options --dump and --rank.
[[nodiscard]] std::vector<OptionSyntax> dump_options();
/// Whether --dump is given. Throws Error{usage} if --dump names nothing that can be printed, if --rank is given without
/// --dump program, or if there is no such rank.
[[nodiscard]] bool wants_dump(const Parsed& parsed, const job::Job& job);
/// Prints the dump that --dump names. REQUIRES: wants_dump() returned true.
void dump(const Parsed& parsed, const job::Job& job, const compile::Compiled& compiled);

}  // namespace shardrun::cli
