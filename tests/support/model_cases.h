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

/// The models of this project, from their built plugins.
[[nodiscard]] const workload::Models& built_models();
/// The model of this name. REQUIRES: there is one.
[[nodiscard]] const workload::Model& find_model(std::string_view name);

/// A model's options as in a job file; those that are not given have their defaults.
[[nodiscard]] workload::ModelSettings model_settings(std::string_view model,
                                                     std::initializer_list<job::WrittenSetting> options,
                                                     const workload::DataShape& data = {});

/// A graph that is small enough to be computed often, and the rows of the calls that a job would make.
struct ModelCase {
  std::string name;
  graph::Graph graph;
  std::vector<std::int64_t> microbatch_rows = {};
  std::vector<std::int64_t> evaluation_rows = {};
  std::int32_t vocabulary = 1;  ///< integer inputs are below this
};

/// Makes a case that trains a model. `is_applied`: the graph also has the function `forward` for the evaluation's rows.
[[nodiscard]] ModelCase training_case(std::string name, std::string_view model,
                                      std::initializer_list<job::WrittenSetting> options,
                                      const workload::DataShape& data, const workload::TrainingSettings& training,
                                      bool is_applied = false);

/// Cases for every variant of every model that can be trained: tied and untied, with biases and dropout, even and
/// uneven microbatches, each optimizer.
[[nodiscard]] std::vector<ModelCase> training_cases(graph::Remat remat);

/// All training cases with and without recomputation, and every variant of the models that iterate fields.
[[nodiscard]] const std::vector<ModelCase>& model_cases();

/// One call of one function.
struct Call {
  const graph::Function* function = nullptr;
  device::Scalars scalars;
  std::vector<Tensor> inputs;  ///< in the order of Function::inputs
};

/// The calls of `steps` optimizer steps or iterations on random inputs, with an evaluation and a prediction after each.
[[nodiscard]] std::vector<Call> calls_of(const ModelCase& model, std::int64_t steps);

using States = IdVector<graph::StateId, Tensor>;

/// Random parameters and fields; all other states are zero.
[[nodiscard]] States first_states(const graph::Graph& graph);

/// Computes a call with separate memory for each value, then applies the writes to `states` one after the other, in the
/// arithmetic of the op where it can add. Returns the function's outputs.
[[nodiscard]] std::vector<Tensor> interpret(const Call& call, const device::Device& device, States& states);

void write_view(const Tensor& tensor, const device::TensorView& view);
[[nodiscard]] Tensor read_view(const graph::TensorType& type, const device::TensorView& view);

}  // namespace shardrun::test
