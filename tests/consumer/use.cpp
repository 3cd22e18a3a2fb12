#include <fmt/format.h>

#include <exception>
#include <vector>

#include "plugins/loader/strategy.h"

using namespace shardrun::plan;
using namespace shardrun::plugins;

/// Loads the plugins that the project in project/ has built, from the folders that belong to this program, and lets the
/// strategy plan. Exits 1 with a message if something is not as expected.
int main() try {
  const Directories directories = plugin_directories({}, nullptr);
  StrategyRequest request;
  request.job.ranks = 3;
  request.graph.tensors = {{SR_TENSOR_PARAMETER, "w", {4, 6}, {"in", "out"}, 96, -1, 0}};

  const Plan columns = Strategy::open(directories, "columns").make_plan(request);
  const Plan plain = Strategy::open(directories, "plain").make_plan(request);

  const bool expected = columns.mesh == std::vector<MeshAxis>{{"model", 3}} &&
                        columns.tensors == std::vector<TensorPlacement>{{"w", TensorRole::store, {{}, {"model"}}}} &&
                        plain.mesh == std::vector<MeshAxis>{{"data", 3}} && plain.tensors.empty();
  if (!expected) {
    fmt::print(stderr, "the plans are not what the strategies write\n");
  }
  return expected ? 0 : 1;
} catch (const std::exception& error) {
  fmt::print(stderr, "{}\n", error.what());
  return 1;
}
