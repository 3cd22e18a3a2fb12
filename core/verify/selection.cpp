#include "core/verify/selection.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <shardrun/sdk/strategy/glob.hpp>

#include "core/base/error.h"
#include "core/base/human.h"
#include "core/base/suggest.h"
#include "core/verify/snapshot.h"

namespace shardrun::verify {
namespace {

bool is_compared(const graph::State& state) {
  return std::ranges::any_of(moments, [&](Moment moment) { return belongs_to(state.kind, moment); });
}

[[noreturn]] void refuse(const std::string& glob, const graph::Graph& graph) {
  constexpr std::size_t most = 12;
  std::vector<std::string> names;
  for (const graph::State& state : graph.states) {
    if (is_compared(state)) {
      names.push_back(state.name);
    }
  }
  const std::span<const std::string> first(names.data(), std::min(most, names.size()));
  throw Error(
      ErrorCode::usage,
      fmt::format("--tensors '{}' matches no tensor{}; the job has {}: {}{}; * stands for any characters, ? for "
                  "one, and show-sharding JOB.ini '*' shows all",
                  glob, did_you_mean(glob, names), counted(std::ssize(names), "tensor"), fmt::join(first, ", "),
                  names.size() > most ? ", …" : ""));
}

}  // namespace

Selection select(const graph::Graph& graph, const std::vector<std::string>& globs) {
  if (globs.empty()) {
    return {};
  }
  Selection selection(graph.states.size(), false);
  for (const std::string& glob : globs) {
    bool matches = false;
    for (const graph::StateId s : graph.states.ids()) {
      const graph::State& state = graph.states[s];
      if (!is_compared(state)) {
        continue;
      }
      const bool is_of_match =
          state.of_parameter.exists() && sdk::glob_matches(glob, graph.states[state.of_parameter].name);
      if (is_of_match || sdk::glob_matches(glob, state.name)) {
        selection[s] = true;
        matches = true;
      }
    }
    if (!matches) {
      refuse(glob, graph);
    }
  }
  return selection;
}

}  // namespace shardrun::verify
