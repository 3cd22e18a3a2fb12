#pragma once

#include <string>
#include <vector>

#include "plugins/loader/strategy.h"

namespace shardrun::conformance {

/// A job for a strategy to split, without options: each has its default.
struct StrategyJob {
  std::string mesh;  ///< its [mesh], for messages; "no [mesh]" where it has none
  plugins::StrategyRequest request;
};

/// The built-in programs, similar to those that models make, so that a check needs no model. `gpt` has layers, tied
/// weights, cut points and every axis that models name. `mlp` has little of that. `field` is one state that is
/// iterated, without parameters.
[[nodiscard]] const std::vector<std::string>& program_names();

/// The program over that many ranks, with each form of [mesh] that the suite knows: none, one axis, grids.
[[nodiscard]] std::vector<StrategyJob> jobs_of(const std::string& program, std::uint32_t ranks);

/// The numbers of ranks that the suite uses.
[[nodiscard]] const std::vector<std::uint32_t>& rank_counts();

}  // namespace shardrun::conformance
