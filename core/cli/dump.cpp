#include "core/cli/dump.h"

#include <fmt/format.h>

#include <cstdio>

#include "core/base/error.h"

namespace shardrun::cli {

OptionSyntax dump_option() {
  return {.name = "dump",
          .value = "graph|plan|program",
          .help = "print what the job becomes on its way to the executor, and start nothing"};
}

bool dump(const Parsed& parsed, const task::Compiled& compiled) {
  const std::optional<std::string> what = parsed.get("dump");
  if (!what) {
    return false;
  }
  if (*what == "graph") {
    fmt::print("{}", graph::to_string(compiled.graph));
  } else if (*what == "plan") {
    fmt::print("{}{}", partition::to_string(compiled.plan),
               partition::to_string(compiled.partition.sharded, compiled.graph, compiled.partition.placements.mesh));
  } else if (*what == "program") {
    fmt::print("{}", partition::to_string(compiled.programs));
  } else {
    throw Error(ErrorCode::usage, fmt::format("--dump: expected graph, plan or program, found '{}'", *what));
  }
  return true;
}

}  // namespace shardrun::cli
