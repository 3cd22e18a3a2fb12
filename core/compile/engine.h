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
  plugins::EngineRequest request;  ///< the request of this rank
  workload::DataShape data;
  /// Per rank: its parameters in the order of declaration.
  std::vector<std::vector<plugins::EngineParameter>> parameters;
  /// Type and shape of a sample; −1 stands for any size.
  plugins::ArrayView sample = {};

  [[nodiscard]] const std::vector<plugins::EngineParameter>& own() const { return parameters[request.rank]; }
  /// The ranks that hold the same part as `parameter`, ascending.
  [[nodiscard]] std::vector<std::uint32_t> holders_of(const plugins::EngineParameter& parameter) const;
  /// This rank's share of `rows` rows: its first row, and its number of rows.
  [[nodiscard]] std::pair<std::int64_t, std::int64_t> rows_of(std::int64_t rows) const;
  /// The array of `rows` samples; its memory is not set. REQUIRES: no size is −1.
  [[nodiscard]] plugins::ArrayView samples(std::int64_t rows) const;
};

/// Throws Error{job} if the job has an engine. `what`: the command or setting that needs a model, such as "a plan".
void require_model(const job::Job& job, std::string_view what);
/// Throws Error{job} if the job only applies a model. `what`: the command or setting that needs steps.
void require_steps(const job::Job& job, std::string_view what);

/// Opens the job's engine and asks for the parameters of all ranks. Throws Error{job} if the engine refuses the job's
/// settings, and Error{plugin} if ranks' parts overlap, leave gaps, or disagree about the whole.
[[nodiscard]] JobEngine open_engine(const job::Job& job, std::int64_t rank, const workload::DataShape& data);

/// Throws Error{job} at `where` unless the graph has the engine's parameters, with equal whole shapes and weight decay.
void require_parameters_of(const graph::Graph& graph, const JobEngine& engine, const std::string& where);

/// Throws Error{plugin} if the ranks' parts overlap, leave gaps, or disagree about the whole.
void require_whole_parameters(const JobEngine& engine);

/// The shape and type of a sample: as the engine declares (`said`), or one dimension of `features`. Throws Error{job}
/// if these disagree, or if the job trains and the engine does not take f32 samples of a known size.
[[nodiscard]] plugins::ArrayView sample_of(const job::Job& job, const plugins::Engine& engine,
                                           const std::optional<plugins::ArrayView>& said, std::int64_t features);

/// A program with only the parameters of which this rank's part has elements.
[[nodiscard]] workload::EngineProgram parameters_of(const JobEngine& engine);

/// The program that the host computes for this rank. Throws Error{job} if the data does not suit the loss.
[[nodiscard]] workload::EngineProgram program_of(const job::Job& job, const JobEngine& engine,
                                                 workload::OptimizerSettings optimizer, std::int64_t eval_rows,
                                                 std::int64_t eval_samples);

/// The box of a state's part, which is that of its parameter, and the shape of the whole state. Both are empty for a
/// metric. `graph`: the graph of this rank.
[[nodiscard]] std::pair<mesh::Box, std::vector<std::int64_t>> place_of(const JobEngine& engine,
                                                                       const graph::Graph& graph, graph::StateId state);

/// The file for the whole parameters. Its metadata has the section [engine], and either the sizes of samples and
/// predictions or, for states that are iterated, `steps`: the number of steps done.
[[nodiscard]] checkpoint::StateFile engine_file(std::filesystem::path path, const JobEngine& engine,
                                                std::int64_t steps = 0);

/// The parts that a rank writes. If several ranks hold a part, only the first of them writes it. If `graph` is the
/// rank's graph, each part refers to the state of its name.
[[nodiscard]] std::vector<checkpoint::SavedPart> saved_parts(const JobEngine& engine, std::uint32_t rank,
                                                             const graph::Graph& graph);

/// The states that a checkpoint contains. Each refers to the state of its name in `graph`, if that graph's rank has a
/// part of it. REQUIRES: the job iterates.
[[nodiscard]] std::vector<checkpoint::HeldTensor> held_tensors(const JobEngine& engine, const graph::Graph& graph);

/// The states of held_tensors(), as whole tensors in a graph without functions.
[[nodiscard]] graph::Graph whole_states(const JobEngine& engine);

/// The engine's name and options, as text. A run that continues from a checkpoint must have the same text.
[[nodiscard]] std::string section_of(const JobEngine& engine);

/// The parameters of all ranks as text, for comparison.
[[nodiscard]] std::string to_string(const JobEngine& engine);

}  // namespace shardrun::compile
