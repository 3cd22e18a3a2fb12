#include "core/models/heat.h"

// The heat equation in one dimension, explicit in time: u[i] ← 0.5 u[i] + 0.25 u[i−1] + 0.25 u[i+1].

namespace shardrun::models {
namespace {

void declare(graph::Graph& graph, const ModelSettings& settings) {
  declare_temperature(graph, settings, {settings.options.integer("cells")}, {"x"});
}

void iterate(graph::FunctionBuilder& builder, const ModelSettings& settings) {
  iterate_temperature(builder, settings, 0.5, 0.25);
}

const RegisterModel heat1d(
    {.name = "heat1d",
     .help = "heat equation on a line, iterated",
     .options = heat_options({{.name = "cells",
                               .minimum = 1,
                               .maximum = 1099511627776,
                               .help = "points of the line; its axis is x",
                               .aliases = {"n", "nx", "points", "num_cells", "grid_points", "n_points", "size"}}}),
     .declare = declare,
     .iterate = iterate});

}  // namespace
}  // namespace shardrun::models
