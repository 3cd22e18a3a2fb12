#pragma once

#include <shardrun/sdk/model.hpp>

#include <string>
#include <utility>
#include <vector>

// What the heat equations share: a field of temperatures with a bump in its middle, and conditions at its ends.

namespace shardrun::workload {

using namespace shardrun::sdk;

/// A model's own options, followed by the common ones.
inline std::vector<Option> heat_options(std::vector<Option> own) {
  own.push_back(text_option("boundary", "periodic", {"periodic", "fixed"},
                            "what is past the ends: the other end, or walls of constant temperature"));
  own.push_back(number_option("wall", 0, 0, 0, "temperature of the walls; with boundary = fixed only"));
  own.push_back(
      number_option("bump", 0.1, 1e-6, 1, "width of the first temperature's bump, as a share of each dimension"));
  return own;
}

inline void declare_temperature(const ModelJob& job, States& states, const Dims& dims) {
  if (job.options.text("boundary") == "periodic" && job.options.number("wall") != 0) {
    throw InvalidJob("[model] wall has no effect with boundary = periodic: leave it out, or use boundary = fixed",
                     "model.wall");
  }
  states.field("temperature", dims, bump(job.options.number("bump")));
}

/// Writes the next temperatures: `own` times each point plus `neighbour` times each of its neighbours. A point has two
/// neighbours in each dimension; the lower one is added first.
inline void iterate_temperature(const ModelJob& job, Function& f, double own, double neighbour) {
  const Boundary boundary{job.options.text("boundary") == "periodic", job.options.number("wall")};
  const Value u = f.state("temperature");
  const Dims dims = u.dims();
  Value next = own * u;
  for (std::size_t d = 0; d < dims.size(); ++d) {
    next = next + neighbour * shift(u, d, -1, boundary, "shift/" + dims[d].axis + "-1");
    next = next + neighbour * shift(u, d, +1, boundary, "shift/" + dims[d].axis + "+1");
  }
  f.write("temperature", next.named("next"));
}

}  // namespace shardrun::workload
