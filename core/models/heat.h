#pragma once

#include <vector>

#include "core/models/model.h"

namespace shardrun::models {

// What heat equations have in common: a field of temperatures with a bump in its middle, and what is at its ends.

/// The options of all of them, after a model's own.
[[nodiscard]] std::vector<OptionSpec> heat_options(std::vector<OptionSpec> own);

/// Throws Error{job} for options that cannot be meant together.
void declare_temperature(graph::Graph& graph, const ModelSettings& settings, std::vector<std::int64_t> shape,
                         std::vector<std::string> axes);

/// The next temperatures: `own` of each point's, and `neighbour` of that of each of its neighbours, two a dimension,
/// the one before it first.
void iterate_temperature(graph::FunctionBuilder& builder, const ModelSettings& settings, double own, double neighbour);

}  // namespace shardrun::models
