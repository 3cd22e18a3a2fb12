#pragma once

#include <string>
#include <vector>

#include "plugins/loader/strategy.h"

namespace shardrun::conformance {

/// A job for a strategy to split. All options have their defaults.
struct StrategyJob {
  std::string mesh;  ///< the job's [mesh], for messages; "no [mesh]" if it has none
  plugins::StrategyRequest request;
};

/// The names of the built-in programs. They are similar to those that models make, so a check needs no model. `gpt` has
/// layers, tied weights, cut points and every axis that models name. `mlp` has few of these. `field` is a single state
/// that is iterated, without parameters.
[[nodiscard]] const std::vector<std::string>& program_names();

/// Jobs that run the program on `ranks` ranks, with each form of [mesh] that the suite knows: none, one axis, grids.
[[nodiscard]] std::vector<StrategyJob> jobs_of(const std::string& program, std::uint32_t ranks);

/// The numbers of ranks that the suite uses.
[[nodiscard]] const std::vector<std::uint32_t>& rank_counts();

}  // namespace shardrun::conformance
