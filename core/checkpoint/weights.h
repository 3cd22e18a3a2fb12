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

// A trained model as one safetensors file, with one tensor per parameter (float32, global shape). Its metadata
// completes it: `shardrun.model` ([model] as an INI section) and, for text, `shardrun.tokenizer` (JSON).

/// A file that contains states.
struct StateFile {
  std::filesystem::path path;
  std::vector<graph::StateId> states;
  TensorFileLayout layout;
};

/// A safetensors file with all states of one kind.
[[nodiscard]] StateFile state_file(std::filesystem::path path, const graph::Graph& graph, graph::StateKind kind,
                                   const Metadata& metadata);
/// A .npy file for each output of the function `iterate`: `folder`/NAME`suffix`.npy.
[[nodiscard]] std::vector<StateFile> output_files(const std::filesystem::path& folder, const graph::Graph& graph,
                                                  std::string_view suffix = {});

struct SaveCallbacks {
  std::function<void()> await_ranks = [] {};        ///< returns once every rank has called it
  std::function<void()> parts_are_written = [] {};  ///< called by each rank after writing its own parts; may throw
  std::function<void()> before_commit = [] {};      ///< called by the first rank; may throw
};

/// A part of a tensor that a rank writes.
struct SavedPart {
  std::string tensor;
  std::vector<std::int64_t> whole;  ///< the tensor's shape
  mesh::Box box;
  graph::StateId state;                ///< the state that has the values, on the rank that writes them
  std::optional<mesh::Box> held = {};  ///< the rank's part of that state, which contains `box`; none: it is `box`
};

/// Writes a file. Each rank writes the parts that `parts_of` returns for it; together these make the file's tensors
/// whole. All ranks call it at the same point. Until the new file is complete, the path keeps the old one. Throws
/// Error{io}.
void save_parts(const StateFile& file, std::int64_t ranks,
                const std::function<std::vector<SavedPart>(std::int64_t rank)>& parts_of,
                const runtime::Executor& executor, std::int64_t rank, const SaveCallbacks& callbacks = {});

/// Writes a file of states. Each rank writes the parts that it holds; of replicas only the first rank writes. For a
/// parameter in mixed precision, writes the float32 master weights. All ranks call it at the same point. Until the new
/// file is complete, the path keeps the old one. Throws Error{io}.
void save_states(const StateFile& file, const graph::Graph& graph, const partition::Partition& partition,
                 const runtime::Executor& executor, std::int64_t rank, const SaveCallbacks& callbacks = {});

/// A section [model] of a job file that describes this model with all its options. If the data's samples are rows of
/// arrays, a section [trained_on] with their sizes follows.
[[nodiscard]] std::string model_section(const workload::Model& model, const workload::ModelSettings& settings);

[[nodiscard]] Metadata describe_model(const workload::Model& model, const workload::ModelSettings& settings,
                                      const data::Tokenizer* tokenizer);
/// describe_model() from a model's section and a tokenizer's JSON, which is empty if there is none.
[[nodiscard]] Metadata describe_model(const std::string& section, const std::string& tokenizer);

/// A model that was read from a file.
struct TrainedModel {
  workload::Model model;
  workload::ModelSettings settings;
  std::optional<data::Tokenizer> tokenizer;
};

/// Reads the model from the metadata. Throws Error{data} if describe_model() did not write it, or if its model is not
/// among `models`.
[[nodiscard]] TrainedModel read_model(const TensorSource& source, const workload::Models& models);

/// The name of the model to which the weights belong; "" if the metadata does not say it.
[[nodiscard]] std::string model_of(const TensorSource& source);
/// A job with only the [model] section that the metadata describes. Throws Error{data} if it describes none.
[[nodiscard]] job::RawJob job_of(const TensorSource& source);
/// The sizes of the data on which the model was trained, if the metadata has them.
[[nodiscard]] workload::DataShape trained_on(const TensorSource& source);

}  // namespace shardrun::checkpoint
