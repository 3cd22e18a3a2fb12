#pragma once

#include <string>
#include <vector>

#include "plugins/loader/strategy.h"

namespace shardrun::conformance {

/// A job that a strategy has to split. All options have their defaults.
struct StrategyJob {
  std::string mesh;  ///< the text of [mesh], for messages; "no [mesh]" if there is none
  plugins::StrategyRequest request;
};

/// The names of the built-in programs, which resemble those of models, so that a check of a strategy needs no model.
/// `gpt` has layers, tied weights, cut points and all axes that models name. `mlp` has few of these. `field` is one
/// state without parameters, which is iterated.
[[nodiscard]] const std::vector<std::string>& program_names();

/// Jobs that run the program on `ranks` ranks, one for each form of [mesh] that is tried: none, one axis, grids.
[[nodiscard]] std::vector<StrategyJob> jobs_of(const std::string& program, std::uint32_t ranks);

/// The numbers of ranks that are tried.
[[nodiscard]] const std::vector<std::uint32_t>& rank_counts();

}  // namespace shardrun::conformance
