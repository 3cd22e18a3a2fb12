#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <boost/json.hpp>
#include <set>

#include "core/base/human.h"
#include "core/checkpoint/rank_file.h"
#include "core/cli/plan.h"

namespace shardrun::cli {
namespace {

namespace json = boost::json;

/// Ranks that need equally much memory of the host.
struct AlikeRanks {
  std::vector<std::int64_t> members;
  partition::MemoryUse memory;
  std::uint64_t snapshot = 0;
};

std::vector<AlikeRanks> ranks_of(const job::Job& job, const compile::Compiled& first) {
  std::vector<AlikeRanks> all;
  const bool copies = checkpoint::takes_snapshots(job);
  for (std::int64_t rank = 0; rank < job.ranks; ++rank) {
    const compile::Compiled compiled = compile::compile(job, rank, {}, first.dataset);
    const std::uint64_t snapshot =
        copies ? checkpoint::RankFile(compile::contents_of(job, compiled), rank).snapshot_bytes() : 0;
    const auto same = std::ranges::find_if(all, [&](const AlikeRanks& each) {
      return each.memory == compiled.programs.memory && each.snapshot == snapshot;
    });
    if (same != all.end()) {
      same->members.push_back(rank);
    } else {
      all.push_back({{rank}, compiled.programs.memory, snapshot});
    }
  }
  return all;
}

/// The parts that ranks hold of each parameter or state: "rank 0: [500] at [0]".
std::string parts_text(const compile::JobEngine& engine) {
  std::set<std::string> names;
  for (const auto& declared : engine.parameters) {
    std::ranges::transform(declared, std::inserter(names, names.end()), &plugins::EngineParameter::name);
  }
  std::string text;
  for (const std::string& name : names) {
    std::string parts;
    for (std::size_t rank = 0; rank < engine.parameters.size(); ++rank) {
      const auto own = std::ranges::find(engine.parameters[rank], name, &plugins::EngineParameter::name);
      if (own == engine.parameters[rank].end()) {
        continue;
      }
      const std::vector<std::uint32_t> holders = engine.holders_of(*own);
      if (parts.empty()) {
        text += fmt::format("  {} [{}]\n", name, fmt::join(own->whole, ", "));
      }
      if (holders.front() == rank) {
        parts += fmt::format("    {}: [{}] at [{}]\n", title_of({holders.begin(), holders.end()}),
                             fmt::join(own->shape, ", "), fmt::join(own->origin, ", "));
      }
    }
    text += parts;
  }
  return text;
}

}  // namespace

std::string engine_plan_text(const job::Job& job, const compile::Compiled& compiled) {
  std::string text = fmt::format(
      "engine {} on {}, which hold\n{}memory that the host keeps for it; what it allocates itself comes on top, and "
      "what it sends is its own\n",
      job.engine.name, counted(job.ranks, "rank"), parts_text(*compiled.engine));
  for (const AlikeRanks& alike : ranks_of(job, compiled)) {
    const partition::MemoryUse& memory = alike.memory;
    text += fmt::format("\n{:<16} {:>15}\n", title_of(alike.members), "bytes");
    const auto row = [&](const char* name, std::uint64_t bytes) {
      if (bytes > 0) {
        text += fmt::format("{:<16} {:>15}   {}\n", name, bytes, human_bytes(bytes));
      }
    };
    row("parameters", memory.parameters);
    row("gradients", memory.gradients);
    row("optimizer", memory.optimizer);
    row("activations", memory.activations);
    row("communication", memory.communication);
    row("scratch", memory.scratch);
    row("peak", memory.peak);
    row("snapshot", alike.snapshot);
  }
  return text;
}

std::string engine_plan_json(const job::Job& job, const compile::Compiled& compiled, const run::Beginning& beginning) {
  json::array ranks;
  for (const AlikeRanks& alike : ranks_of(job, compiled)) {
    json::object bytes = {{"parameters", alike.memory.parameters},
                          {"gradients", alike.memory.gradients},
                          {"optimizer", alike.memory.optimizer},
                          {"activations", alike.memory.activations},
                          {"communication", alike.memory.communication},
                          {"scratch", alike.memory.scratch},
                          {"peak", alike.memory.peak}};
    if (alike.snapshot > 0) {
      bytes["snapshot"] = alike.snapshot;
    }
    ranks.push_back(json::object{{"members", json::array(alike.members.begin(), alike.members.end())},
                                 {"bytes", std::move(bytes)}});
  }
  json::object plan = {{"engine", job.engine.name}, {"ranks", std::move(ranks)}};
  add_to_plan(plan, forecast::disk_use(job, compiled), beginning);
  return json::serialize(plan) + "\n";
}

}  // namespace shardrun::cli
