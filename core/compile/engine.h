#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/checkpoint/contents.h"
#include "core/checkpoint/safetensors.h"
#include "core/checkpoint/weights.h"
#include "core/data/dataset.h"
#include "core/job/job.h"
#include "core/mesh/placement.h"
#include "core/workload/engine.h"
#include "plugins/loader/engine.h"

namespace shardrun::compile {

/// The engine of a job, and the parts of parameters that its ranks hold.
struct JobEngine {
  plugins::Engine plugin;
  plugins::EngineRequest request;  ///< this rank's
  workload::DataShape data;
  std::vector<std::vector<plugins::EngineParameter>> parameters;  ///< per rank, in order of declaration
  plugins::ArrayView sample = {};                                 ///< type and shape of a sample, with -1 for any size

  [[nodiscard]] const std::vector<plugins::EngineParameter>& own() const { return parameters[request.rank]; }
  /// The ranks that hold the same part, in order.
  [[nodiscard]] std::vector<std::uint32_t> holders_of(const plugins::EngineParameter& parameter) const;
  /// Which of `rows` rows are this rank's: the first, and their number.
  [[nodiscard]] std::pair<std::int64_t, std::int64_t> rows_of(std::int64_t rows) const;
  /// An array of `rows` samples, without memory. REQUIRES: no size is -1.
  [[nodiscard]] plugins::ArrayView samples(std::int64_t rows) const;
};

/// Throws Error{job} if the job has an engine. `what`: the command or setting that needs a model, such as "a plan".
void require_model(const job::Job& job, std::string_view what);
/// Throws Error{job} if the job only applies a model, for which `what` does not exist.
void require_steps(const job::Job& job, std::string_view what);

/// Opens the job's engine and asks it for the parameters of all ranks. Throws Error{job} if the job has to change, and
/// Error{plugin} if parts overlap, leave gaps, or disagree about the whole.
[[nodiscard]] JobEngine open_engine(const job::Job& job, std::int64_t rank, const workload::DataShape& data);

/// Throws Error{job} at `where` unless the graph has the engine's parameters, with their whole shapes and decay.
void require_parameters_of(const graph::Graph& graph, const JobEngine& engine, const std::string& where);

/// Throws Error{plugin} if the ranks' parts overlap, leave gaps, or disagree about the whole.
void require_whole_parameters(const JobEngine& engine);

/// The shape and type of a sample: what the engine declares, or one dimension with the number of features. Throws
/// Error{job} if these disagree.
[[nodiscard]] plugins::ArrayView sample_of(const job::Job& job, const plugins::Engine& engine,
                                           const std::optional<plugins::ArrayView>& said, std::int64_t features);

/// Those of this rank's parts of parameters that have elements.
[[nodiscard]] workload::EngineProgram parameters_of(const JobEngine& engine);

/// What the host computes for this rank. Throws Error{job} if the data does not suit the loss.
[[nodiscard]] workload::EngineProgram program_of(const job::Job& job, const JobEngine& engine,
                                                 workload::OptimizerSettings optimizer, std::int64_t eval_rows,
                                                 std::int64_t eval_samples);

/// The place of a state in the whole, which is the place of its parameter, and the shape of the whole. `graph`: this
/// rank's.
[[nodiscard]] std::pair<mesh::Box, std::vector<std::int64_t>> place_of(const JobEngine& engine,
                                                                       const graph::Graph& graph, graph::StateId state);

/// The file of the whole parameters. Its metadata has the section [engine], and the sizes of samples and predictions
/// or, for states that are iterated, the steps done.
[[nodiscard]] checkpoint::StateFile engine_file(std::filesystem::path path, const JobEngine& engine,
                                                std::int64_t steps = 0);

/// The parts that a rank writes. If several ranks hold the same part, the first of them writes it. If `graph` is the
/// rank's, each part refers to the state of its name.
[[nodiscard]] std::vector<checkpoint::SavedPart> saved_parts(const JobEngine& engine, std::uint32_t rank,
                                                             const graph::Graph& graph);

/// The states that a checkpoint contains. Each refers to the state of its name in `graph`, if the graph's rank has a
/// part of it. REQUIRES: the task is to iterate.
[[nodiscard]] std::vector<checkpoint::HeldTensor> held_tensors(const JobEngine& engine, const graph::Graph& graph);

/// The same states as whole tensors, in a graph without a function.
[[nodiscard]] graph::Graph whole_states(const JobEngine& engine);

/// The engine's name and options, as text. A run that continues from a checkpoint must have the same text.
[[nodiscard]] std::string section_of(const JobEngine& engine);

/// The parameters of all ranks as text, for comparison.
[[nodiscard]] std::string to_string(const JobEngine& engine);

}  // namespace shardrun::compile
