#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/checkpoint/safetensors.h"
#include "core/checkpoint/tensor_source.h"
#include "core/data/tokenizer.h"
#include "core/graph/graph.h"
#include "core/job/job.h"
#include "core/job/raw.h"
#include "core/partition/partition.h"
#include "core/runtime/executor.h"
#include "core/workload/model.h"

namespace shardrun::checkpoint {

// A trained model is one safetensors file, with a tensor for each parameter (float32, global shape). Its metadata has
// `shardrun.model` (the sections that describe the model) and, for text, `shardrun.tokenizer` (JSON).

/// A file that contains states of a graph.
struct StateFile {
  std::filesystem::path path;
  std::vector<graph::StateId> states;
  TensorFileLayout layout;
};

/// The layout of a safetensors file with all states of one kind.
[[nodiscard]] StateFile state_file(std::filesystem::path path, const graph::Graph& graph, graph::StateKind kind,
                                   const Metadata& metadata);
/// For each output of the function `iterate`, the layout of its file: `folder`/NAME`suffix`.npy.
[[nodiscard]] std::vector<StateFile> output_files(const std::filesystem::path& folder, const graph::Graph& graph,
                                                  std::string_view suffix = {});

struct SaveCallbacks {
  std::function<void()> await_ranks = [] {};        ///< waits until every rank has called it
  std::function<void()> parts_are_written = [] {};  ///< called by each rank after writing its own parts; can throw
  std::function<void()> before_commit = [] {};      ///< called by the first rank; can throw
};

/// A part of a tensor that a rank writes.
struct SavedPart {
  std::string tensor;
  std::vector<std::int64_t> whole;  ///< the tensor's shape
  mesh::Box box;
  graph::StateId state;                ///< the state with the values, on the rank that writes them
  std::optional<mesh::Box> held = {};  ///< the part that the rank holds; nothing: it is `box`
};

/// Writes a file. Each rank writes the parts that `parts_of` returns for it; together, the ranks must write all
/// elements. All ranks call this function at the same point. Until the new file is complete, the path keeps the old
/// one. Throws Error{io}.
void save_parts(const StateFile& file, std::int64_t ranks,
                const std::function<std::vector<SavedPart>(std::int64_t rank)>& parts_of,
                const runtime::Executor& executor, std::int64_t rank, const SaveCallbacks& callbacks = {});

/// Writes a file of states. If several ranks hold the same part, one of them writes it. For a parameter in mixed
/// precision, the float32 master weights are written. All ranks call this function at the same point. Until the new
/// file is complete, the path keeps the old one. Throws Error{io}.
void save_states(const StateFile& file, const graph::Graph& graph, const partition::Partition& partition,
                 const runtime::Executor& executor, std::int64_t rank, const SaveCallbacks& callbacks = {});

/// The section [model] of a job file for this model, with all its options. If the data's samples are rows of arrays, a
/// section [trained_on] with the sizes of rows follows.
[[nodiscard]] std::string model_section(const workload::Model& model, const workload::ModelSettings& settings);

[[nodiscard]] Metadata describe_model(const workload::Model& model, const workload::ModelSettings& settings,
                                      const data::Tokenizer* tokenizer);
/// The metadata of describe_model() from the text of a model's section and a tokenizer's JSON ("": no tokenizer).
[[nodiscard]] Metadata describe_model(const std::string& section, const std::string& tokenizer);

/// A model that was read from the metadata of a weights file.
struct TrainedModel {
  workload::Model model;
  workload::ModelSettings settings;
  std::optional<data::Tokenizer> tokenizer;
};

/// Reads the model from the metadata. Throws Error{data} if describe_model() did not write it, or if the model is not
/// one of `models`.
[[nodiscard]] TrainedModel read_model(const TensorSource& source, const workload::Models& models);

/// The name of the weights' model; "" if the metadata does not have it.
[[nodiscard]] std::string model_of(const TensorSource& source);
/// A job that has only the [model] section of the metadata. Throws Error{data} if there is none.
[[nodiscard]] job::RawJob job_of(const TensorSource& source);
/// The sizes of the data on which the model was trained. A size that the metadata does not have is 0.
[[nodiscard]] workload::DataShape trained_on(const TensorSource& source);

}  // namespace shardrun::checkpoint
