#pragma once

#include <filesystem>
#include <string>
#include <string_view>

#include "plugins/loader/strategy.h"
#include "tests/support/errors.h"
#include "tests/support/temporary_folder.h"

namespace shardrun::test {

inline const plugins::Directories fixtures = {SHARDRUN_FIXTURES};

inline std::filesystem::path file_of(std::string_view name) { return "shardrun_strategy_" + std::string(name) + ".so"; }

inline std::string open_error(std::string_view name, const plugins::Directories& directories = fixtures) {
  return error_of([&] { static_cast<void>(plugins::Strategy::open(directories, name)); });
}

/// A small program: one layer with a matrix and a vector, one tensor in which an axis occurs twice, and a cut point
/// per layer.
inline plugins::StrategyRequest small_request(std::uint32_t ranks) {
  plugins::StrategyRequest request;
  request.job.ranks = ranks;
  request.graph.tensors = {
      {SR_TENSOR_PARAMETER, "w", {8, 12}, {"embed", "mlp"}, 384, 0, 1},
      {SR_TENSOR_PARAMETER, "b", {12}, {""}, 48, -1, 0},
      {SR_TENSOR_PARAMETER, "square", {8, 8}, {"embed", "embed"}, 256, -1, 1},
      {SR_TENSOR_STATE, "field", {100, 4}, {"x", "y"}, 1600, -1, 0},
  };
  request.graph.axes = {{"batch", 16}, {"seq", 32}, {"embed", 8}, {"mlp", 12}, {"heads", 7}, {"x", 100}, {"y", 4}};
  request.graph.cut_points = {{"layer.0/residual", {16, 32, 8}, {"batch", "seq", "embed"}, 16384, 0},
                              {"layer.1/residual", {16, 32, 8}, {"batch", "seq", "embed"}, 16384, 1}};
  request.graph.layers = {{"layer.0", 384, 1000, 1001, 1002}, {"layer.1", 0, 2000, 2001, 2002}};
  return request;
}

}  // namespace shardrun::test
