#include "core/models/model.h"

// Each element moves along the gradient of its sine: x ← x + rate · d(Σ sin x)/dx, with the gradient that the op
// declares.

namespace shardrun::models {
namespace {

using graph::FunctionBuilder;
using graph::ValueId;

void declare(graph::Graph& graph, const ModelSettings& settings) {
  const graph::TensorType type{.dtype = graph::DType::f32, .shape = {settings.options.integer("cells")}, .axes = {"x"}};
  graph.states.push_back({.name = "x",
                          .type = type,
                          .kind = graph::StateKind::field,
                          .initializer = {graph::Initializer::Kind::normal, settings.options.real("spread")}});
  graph.states.push_back({.name = "y", .type = type, .kind = graph::StateKind::field});
}

/// y = sin x of the old x, whose sum's gradient is 1 for each element of y.
void iterate(FunctionBuilder& builder, const ModelSettings& settings) {
  const ValueId x = builder.state("x");
  const ValueId y = builder.call("sin", {x}, {}, "y");
  const ValueId one = builder.call("constant", {}, {{"value", 1.0}}, "one");
  const ValueId ones = builder.call("broadcast_scalar", {one, y}, {{"scale", 1.0}}, "gradient_of_y");
  const graph::Attributes none;
  const ValueId gradient = graph::find_op("sin").gradient(builder, {none, {x}, {y}, {ones}, 0});
  const ValueId next =
      builder.call("linear_combination", {x, gradient},
                   {{"coefficients", std::vector<double>{1.0, settings.options.real("rate")}}}, "next");
  builder.write(builder.graph().find_state("x"), next, graph::StateWrite::Mode::assign);
  builder.write(builder.graph().find_state("y"), y, graph::StateWrite::Mode::assign);
}

const RegisterModel sin({.name = "sin",
                         .help = "elements that climb their own sine, iterated",
                         .options =
                             {
                                 {.name = "cells",
                                  .minimum = 1,
                                  .maximum = 1099511627776,
                                  .help = "elements of x and of y = sin x; their axis is x",
                                  .aliases = {"n", "nx", "points", "num_cells", "elements", "size"}},
                                 {.name = "rate",
                                  .type = job::OptionType::real,
                                  .default_value = "0.1",
                                  .help = "how much of its gradient is added to x in each step",
                                  .aliases = {"lr", "learning_rate", "step_size"}},
                                 {.name = "spread",
                                  .type = job::OptionType::real,
                                  .default_value = "1",
                                  .minimum = 0,
                                  .help = "standard deviation of the first x"},
                             },
                         .declare = declare,
                         .iterate = iterate});

}  // namespace
}  // namespace shardrun::models
