#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "core/compile/compile.h"
#include "core/data/dataset.h"
#include "core/device/device.h"
#include "core/graph/graph.h"
#include "core/job/job.h"
#include "core/runtime/executor.h"

namespace shardrun::verify {

/// The parts of a job that its numbers depend on: neither ranks nor devices.
struct Workload {
  const graph::Graph& graph;
  std::vector<std::int64_t> microbatch_rows = {};  ///< empty: the graph's fields are iterated
  std::vector<std::int64_t> evaluation_rows = {};
  std::int64_t iterated_rows = 0;  ///< samples in an iteration
  /// Batches that a model is applied to, with their first sample: a smaller last one comes after the first.
  struct Batch {
    std::int64_t first = 0;
    std::int64_t rows = 0;
  };
  std::vector<Batch> predicted = {};
  const data::Dataset* dataset = nullptr;  ///< for training, predictions, and iterations with samples
  std::uint64_t seed = 0;
  std::function<double(std::int64_t step)> learning_rate = {};
  const job::Job* job = nullptr;  ///< a job that may give its states other first values than the model's; may be null
  const checkpoint::GivenWeights* weights = nullptr;  ///< of a model that is applied

  [[nodiscard]] bool trains() const noexcept { return !microbatch_rows.empty(); }
  [[nodiscard]] bool predicts() const noexcept { return !predicted.empty(); }
  [[nodiscard]] bool evaluates() const noexcept { return !evaluation_rows.empty(); }
};

/// REQUIRES: both arguments outlive it.
[[nodiscard]] Workload workload_of(const job::Job& job, const compile::Compiled& compiled);

/// One call of a function.
struct Call {
  std::string_view function;
  std::int64_t rows = 0;
  bool last = true;  ///< the function's last call in its step
  device::Scalars scalars;
};

// The calls of a step (from 0).

[[nodiscard]] std::vector<Call> gradient_calls(const Workload& workload, std::int64_t step);
/// The update, the iteration, or the batch that a model is applied to.
[[nodiscard]] Call update_call(const Workload& workload, std::int64_t step);
/// The name of the reference's state that holds a batch's predictions.
[[nodiscard]] std::string kept_output(const Workload& workload, std::int64_t step);
[[nodiscard]] std::vector<Call> evaluation_calls(const Workload& workload);

/// Writes a call's samples to an executor's inputs, whole or in parts. `number`: the call's number among those that the
/// program does at once.
void feed(const Workload& workload, const Call& call, runtime::Executor& executor, std::size_t program,
          std::size_t number = 0);

}  // namespace shardrun::verify
