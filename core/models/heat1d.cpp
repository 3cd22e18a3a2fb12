#include "core/base/error.h"
#include "core/models/model.h"

// The heat equation in one dimension, explicit in time: u[i] ← 0.5 u[i] + 0.25 u[i−1] + 0.25 u[i+1].

namespace shardrun::models {
namespace {

using graph::FunctionBuilder;
using graph::ValueId;

void declare(graph::Graph& graph, const ModelSettings& settings) {
  if (settings.options.text("boundary") == "periodic" && settings.options.real("wall") != 0) {
    throw Error(ErrorCode::job,
                "[model] wall has no effect with boundary = periodic: leave it out, or use boundary = fixed");
  }
  graph.states.push_back(
      {.name = "temperature",
       .type = {.dtype = graph::DType::f32, .shape = {settings.options.integer("cells")}, .axes = {"x"}},
       .kind = graph::StateKind::field,
       .initializer = {graph::Initializer::Kind::gaussian_bump, settings.options.real("bump")}});
}

void iterate(FunctionBuilder& builder, const ModelSettings& settings) {
  const graph::StateId field = builder.graph().find_state("temperature");
  const ValueId u = builder.state(field);
  const auto neighbour = [&](std::int64_t offset) {
    return builder.call("shift", {u},
                        {{"dim", std::int64_t{0}},
                         {"offset", offset},
                         {"boundary", settings.options.text("boundary")},
                         {"value", settings.options.real("wall")}});
  };
  const ValueId left = neighbour(-1);
  const ValueId right = neighbour(1);
  const ValueId next = builder.call("linear_combination", {u, left, right},
                                    {{"coefficients", std::vector<double>{0.5, 0.25, 0.25}}}, "next");
  builder.write(field, next, graph::StateWrite::Mode::assign);
}

const RegisterModel heat1d({.name = "heat1d",
                            .help = "heat equation on a line, iterated",
                            .options =
                                {
                                    {.name = "cells", .minimum = 1, .maximum = 1099511627776, .help = "points of the line"},
                                    {.name = "boundary",
                                     .type = job::OptionType::choice,
                                     .default_value = "periodic",
                                     .choices = {"periodic", "fixed"},
                                     .help = "a ring, or walls of constant temperature"},
                                    {.name = "wall",
                                     .type = job::OptionType::real,
                                     .default_value = "0",
                                     .help = "temperature of the walls; with boundary = fixed only"},
                                    {.name = "bump",
                                     .type = job::OptionType::real,
                                     .default_value = "0.1",
                                     .minimum = 1e-6,
                                     .maximum = 1,
                                     .help = "width of the first temperature's bump, as a share of the line"},
                                },
                            .declare = declare,
                            .iterate = iterate});

}  // namespace
}  // namespace shardrun::models
