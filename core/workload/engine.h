#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/graph/graph.h"
#include "core/workload/program.h"

namespace shardrun::workload {

/// The host's computation for one rank of an engine.
struct EngineProgram {
  std::string name;
  /// This rank's part of a parameter, as a separate tensor. `counts`: whether this rank's gradient counts in the norm.
  /// It does for only one of several copies.
  struct Parameter {
    graph::State state;
    bool counts = true;
  };
  std::vector<Parameter> parameters;
  bool labels = false;       ///< the loss is cross-entropy of integer labels; otherwise a squared error
  double loss_scale = 1;     ///< factor of a sample's loss, which is its cross-entropy or half its squared distance
  std::int64_t outputs = 1;  ///< values per prediction
  std::int64_t batch = 1;    ///< samples per step, on all ranks together
  std::vector<std::int64_t> microbatch_rows;  ///< rows of this rank in each microbatch in which it has any
  std::int64_t eval_samples = 0;              ///< samples of a whole evaluation
  std::vector<std::int64_t> evaluation_rows;
  OptimizerSettings optimizer;
};

// The names of functions on demand, and of inputs and outputs.
inline constexpr std::string_view norm_function = "norm";
inline constexpr const char* predictions_input = "predictions";
inline constexpr const char* targets_input = "targets";
inline constexpr const char* gradient_output = "gradient";

/// Builds the graph with these functions:
/// - `micro` adds the loss of some rows of `predictions` to the state `loss`, and computes its gradient;
/// - `norm` sets the state `norm_squared` to this rank's share of the squared norm of all gradients; it is left out if
///   no gradient counts;
/// - `update` clips by the state `norm_squared`, to which the host assigns the sum over all ranks, and makes the
///   optimizer's step;
/// - `evaluate` adds the loss of some rows of validation data to the state `loss`.
/// The loss is the mean over the whole batch: the results of ranks with different rows add up to it.
[[nodiscard]] graph::Graph build_engine(const EngineProgram& engine);

/// A graph with only the parameters, without a function.
[[nodiscard]] graph::Graph build_parameters(const EngineProgram& engine);

}  // namespace shardrun::workload
