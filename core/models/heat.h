#pragma once

#include <vector>

#include "core/models/model.h"

namespace shardrun::models {

// The common parts of heat equations: a field of temperatures with a bump in its middle, and conditions at its ends.

/// A model's own options, followed by the common ones.
[[nodiscard]] std::vector<job::OptionSpec> heat_options(std::vector<job::OptionSpec> own);

/// Throws Error{job} for options that contradict each other.
void declare_temperature(graph::Graph& graph, const ModelSettings& settings, std::vector<std::int64_t> shape,
                         std::vector<std::string> axes);

/// Computes the next temperatures: `own` times each point plus `neighbour` times each of its neighbours, two a
/// dimension, the lower one first.
void iterate_temperature(graph::FunctionBuilder& builder, const ModelSettings& settings, double own, double neighbour);

}  // namespace shardrun::models
