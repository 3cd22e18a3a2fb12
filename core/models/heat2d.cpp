#include "core/models/heat.h"

// The heat equation in two dimensions, explicit in time:
// u[i, j] ← 0.5 u[i, j] + 0.125 (u[i−1, j] + u[i+1, j] + u[i, j−1] + u[i, j+1]), added from left to right.

namespace shardrun::models {
namespace {

void declare(graph::Graph& graph, const ModelSettings& settings) {
  declare_temperature(graph, settings, {settings.options.integer("rows"), settings.options.integer("columns")},
                      {"x", "y"});
}

void iterate(graph::FunctionBuilder& builder, const ModelSettings& settings) {
  iterate_temperature(builder, settings, 0.5, 0.125);
}

const RegisterModel heat2d({.name = "heat2d",
                            .help = "heat equation on a rectangle, iterated",
                            .options = heat_options({{.name = "rows",
                                                      .minimum = 1,
                                                      .maximum = 1048576,
                                                      .help = "points along the axis x",
                                                      .aliases = {"nx", "height", "n_rows"}},
                                                     {.name = "columns",
                                                      .minimum = 1,
                                                      .maximum = 1048576,
                                                      .help = "points along the axis y",
                                                      .aliases = {"ny", "width", "cols", "n_cols"}}}),
                            .declare = declare,
                            .iterate = iterate});

}  // namespace
}  // namespace shardrun::models
