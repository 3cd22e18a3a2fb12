#include "core/cli/dump.h"

#include <fmt/format.h>

#include "core/base/error.h"
#include "core/base/text.h"

namespace shardrun::cli {
namespace {

std::int64_t rank_of(const Parsed& parsed, const job::Job& job) { return parsed.integer("rank", 0, 0, job.ranks - 1); }

}  // namespace

std::vector<OptionSyntax> dump_options() {
  return {{.name = "dump",
           .value = "graph|plan|program",
           .help = "print the job's graph, plan or program, and start nothing"},
          {.name = "rank", .value = "N", .help = "the rank of --dump program (default 0)"}};
}

bool wants_dump(const Parsed& parsed, const job::Job& job) {
  const std::optional<std::string> what = parsed.get("dump");
  if (what && *what != "graph" && *what != "plan" && *what != "program") {
    throw Error(ErrorCode::usage, fmt::format("--dump: expected graph, plan or program, found '{}'", *what));
  }
  if (parsed.has("rank") && what != "program") {
    throw Error(ErrorCode::usage,
                what ? fmt::format("--rank has no effect with --dump {}, which is the same for all ranks", *what)
                     : "--rank has no effect without --dump program, whose rank it chooses");
  }
  static_cast<void>(rank_of(parsed, job));
  return what.has_value();
}

void dump(const Parsed& parsed, const job::Job& job, const compile::Compiled& compiled) {
  const std::string what = parsed.get("dump").value_or("");
  if (what == "graph") {
    fmt::print("{}", printable_lines(graph::to_string(compiled.graph)));
  } else if (what == "plan") {
    fmt::print("{}", printable_lines(to_string(compiled.plan) +
                                     partition::to_string(compiled.partition.sharded, compiled.graph,
                                                          compiled.partition.placements.mesh)));
  } else {
    fmt::print("{}",
               printable_lines(partition::to_string(compile::programs_of_rank(job, compiled, rank_of(parsed, job)))));
  }
}

}  // namespace shardrun::cli
