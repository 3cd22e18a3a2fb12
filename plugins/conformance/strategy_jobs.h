#pragma once

#include <string>
#include <vector>

#include "plugins/loader/strategy.h"

namespace shardrun::conformance {

/// A job that a strategy may be asked to split. Without options: each has its default.
struct StrategyJob {
  std::string mesh;  ///< its [mesh], for messages; "no [mesh]" where it is silent
  plugins::StrategyRequest request;
};

/// Programs as models make them, built in so that a check needs no model: `gpt` has layers, tied weights, cut points
/// and every axis that models name; `mlp` little of that; `field` is one state that is iterated, without a parameter.
[[nodiscard]] const std::vector<std::string>& program_names();

/// The program over so many ranks, with each way to write [mesh] that the suite knows: silent, one axis, grids.
[[nodiscard]] std::vector<StrategyJob> jobs_of(const std::string& program, std::uint32_t ranks);

/// How many ranks the suite asks for.
[[nodiscard]] const std::vector<std::uint32_t>& rank_counts();

}  // namespace shardrun::conformance
