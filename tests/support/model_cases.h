#pragma once

#include <cstdint>
#include <initializer_list>
#include <map>
#include <string>
#include <vector>

#include "core/device/device.h"
#include "core/job/section.h"
#include "core/workload/program.h"
#include "tests/support/tensor.h"

namespace shardrun::test {

/// The models that this project brings, as their plugins are built.
[[nodiscard]] const workload::Models& built_models();
/// REQUIRES: there is one of that name.
[[nodiscard]] const workload::Model& find_model(std::string_view name);

/// A model's options as a job file would have them, the rest by default.
[[nodiscard]] workload::ModelSettings model_settings(std::string_view model,
                                                     std::initializer_list<job::WrittenSetting> options,
                                                     const workload::DataShape& data = {});

/// A graph small enough to be computed often, and the calls that a job would make of it.
struct ModelCase {
  std::string name;
  graph::Graph graph;
  std::vector<std::int64_t> microbatch_rows = {};
  std::vector<std::int64_t> evaluation_rows = {};
  std::int32_t vocabulary = 1;  ///< integers of inputs are below
};

/// `is_applied`: has the function `forward` for the rows of evaluations, too.
[[nodiscard]] ModelCase training_case(std::string name, std::string_view model,
                                      std::initializer_list<job::WrittenSetting> options,
                                      const workload::DataShape& data, const workload::TrainingSettings& training,
                                      bool is_applied = false);

/// Every variant of every model that is trained: tied and not, with biases and dropout, even and uneven microbatches,
/// each optimizer.
[[nodiscard]] std::vector<ModelCase> training_cases(graph::Remat remat);

/// These as they are and with recomputation, and every variant of the models that are iterated.
[[nodiscard]] const std::vector<ModelCase>& model_cases();

/// One call of one function.
struct Call {
  const graph::Function* function = nullptr;
  device::Scalars scalars;
  std::vector<Tensor> inputs;  ///< in the order of Function::inputs
};

/// What `steps` optimizer steps (or iterations) call, evaluation and prediction after each, on random inputs.
[[nodiscard]] std::vector<Call> calls_of(const ModelCase& model, std::int64_t steps);

using States = IdVector<graph::StateId, Tensor>;

/// Random parameters and fields, the rest zero.
[[nodiscard]] States first_states(const graph::Graph& graph);

/// Does a call with every value in memory of its own, then the writes to `states` one after the other, in the
/// arithmetic of the op where it can add. Returns the function's outputs.
[[nodiscard]] std::vector<Tensor> interpret(const Call& call, const device::Device& device, States& states);

void write_view(const Tensor& tensor, const device::TensorView& view);
[[nodiscard]] Tensor read_view(const graph::TensorType& type, const device::TensorView& view);

}  // namespace shardrun::test
