#include "core/models/heat.h"

#include <fmt/format.h>

#include <utility>

namespace shardrun::models {
namespace {

constexpr const char* state_name = "temperature";

}  // namespace

std::vector<OptionSpec> heat_options(std::vector<OptionSpec> own) {
  own.push_back({.name = "boundary",
                 .type = OptionType::choice,
                 .default_value = "periodic",
                 .choices = {"periodic", "fixed"},
                 .help = "what is past the ends: the other end, or walls of constant temperature"});
  own.push_back({.name = "wall",
                 .type = OptionType::real,
                 .default_value = "0",
                 .help = "temperature of the walls; with boundary = fixed only"});
  own.push_back({.name = "bump",
                 .type = OptionType::real,
                 .default_value = "0.1",
                 .minimum = 1e-6,
                 .maximum = 1,
                 .help = "width of the first temperature's bump, as a share of each dimension"});
  return own;
}

void declare_temperature(graph::Graph& graph, const ModelSettings& settings, std::vector<std::int64_t> shape,
                         std::vector<std::string> axes) {
  if (settings.options.text("boundary") == "periodic" && settings.options.real("wall") != 0) {
    refuse(settings, "model", "wall",
           "[model] wall has no effect with boundary = periodic: leave it out, or use boundary = fixed");
  }
  graph.states.push_back({.name = state_name,
                          .type = {.dtype = graph::DType::f32, .shape = std::move(shape), .axes = std::move(axes)},
                          .kind = graph::StateKind::field,
                          .initializer = {graph::Initializer::Kind::gaussian_bump, settings.options.real("bump")}});
}

void iterate_temperature(graph::FunctionBuilder& builder, const ModelSettings& settings, double own, double neighbour) {
  const graph::StateId field = builder.graph().find_state(state_name);
  const graph::ValueId u = builder.state(field);
  std::vector<graph::ValueId> values = {u};
  std::vector<double> coefficients = {own};
  for (std::size_t dim = 0; dim < builder.type(u).shape.size(); ++dim) {
    for (const std::int64_t offset : {-1, 1}) {
      values.push_back(builder.call("shift", {u},
                                    {{"dim", static_cast<std::int64_t>(dim)},
                                     {"offset", offset},
                                     {"boundary", settings.options.text("boundary")},
                                     {"value", settings.options.real("wall")}},
                                    fmt::format("shift/{}{:+}", builder.type(u).axes[dim], offset)));
      coefficients.push_back(neighbour);
    }
  }
  const graph::ValueId next =
      builder.call("linear_combination", values, {{"coefficients", std::move(coefficients)}}, "next");
  builder.write(field, next, graph::StateWrite::Mode::assign);
}

}  // namespace shardrun::models
