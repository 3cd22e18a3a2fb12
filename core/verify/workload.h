#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/compile/compile.h"
#include "core/data/dataset.h"
#include "core/device/device.h"
#include "core/graph/graph.h"
#include "core/job/job.h"
#include "core/runtime/executor.h"

namespace shardrun::verify {

/// The parts of a job that determine its numbers. Ranks and devices are not among them.
struct Workload {
  const graph::Graph& graph;
  std::vector<std::int64_t> microbatch_rows = {};  ///< rows of each microbatch; empty: no training
  std::vector<std::int64_t> evaluation_rows = {};
  std::int64_t iterated_rows = 0;  ///< samples per iteration
  /// A batch to which a model is applied. In `predicted`, a last batch that is smaller comes after the first.
  struct Batch {
    std::int64_t first = 0;
    std::int64_t rows = 0;
  };
  std::vector<Batch> predicted = {};
  /// A prompt with the tokens that continue it.
  struct Sequence {
    std::string name;
    std::vector<std::int32_t> tokens;  ///< up to the last one that was read
    /// Positions, ascending. The logits at a position are those computed from its token and all before it.
    std::vector<std::int32_t> kept;
    std::int64_t line = 0;  ///< the prompt's line in its file, counted from 1; 0: not known
    std::string id = {};    ///< JSON of the prompt's id; empty: it has none
  };
  std::vector<Sequence> sequences = {};
  const data::Dataset* dataset = nullptr;  ///< the data for training, predictions, and iterations with samples
  std::uint64_t seed = 0;
  std::function<double(std::int64_t step)> learning_rate = {};
  const job::Job* job = nullptr;  ///< a job that can replace the model's initial states; null if there is none
  const checkpoint::GivenWeights* weights = nullptr;  ///< the weights of a model that is applied; null: none

  [[nodiscard]] bool trains() const noexcept { return !microbatch_rows.empty(); }
  [[nodiscard]] bool predicts() const noexcept { return !predicted.empty() || !sequences.empty(); }
  [[nodiscard]] bool evaluates() const noexcept { return !evaluation_rows.empty(); }
};

/// Makes the workload of a compiled job. REQUIRES: both arguments outlive the result.
[[nodiscard]] Workload workload_of(const job::Job& job, const compile::Compiled& compiled);

/// The states that functions of a graph write, in the order of their numbers.
[[nodiscard]] std::vector<graph::StateId> written_states(const graph::Graph& graph);

/// One call of a function.
struct Call {
  std::string_view function;
  std::int64_t rows = 0;
  bool last = true;  ///< whether it is the function's last call in its step
  device::Scalars scalars;
};

// The calls of a step. Steps count from 0.

[[nodiscard]] std::vector<Call> gradient_calls(const Workload& workload, std::int64_t step);
/// The call that updates parameters, iterates the fields, or applies the model to a batch or to a sequence.
[[nodiscard]] Call update_call(const Workload& workload, std::int64_t step);
/// The name of the state in which the reference keeps a batch's predictions.
[[nodiscard]] std::string kept_output(const Workload& workload, std::int64_t step);
[[nodiscard]] std::vector<Call> evaluation_calls(const Workload& workload);

/// Writes a call's samples to an executor's inputs, whole or this rank's parts. `number`: the index of the call among
/// the calls that an execution of the program covers.
void feed(const Workload& workload, const Call& call, runtime::Executor& executor, std::size_t program,
          std::size_t number = 0);

}  // namespace shardrun::verify
