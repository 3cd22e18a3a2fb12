#pragma once

#include <filesystem>
#include <optional>

#include "core/checkpoint/safetensors.h"
#include "core/data/tokenizer.h"
#include "core/graph/graph.h"
#include "core/job/job.h"
#include "core/models/model.h"
#include "core/partition/partition.h"
#include "core/runtime/executor.h"

namespace shardrun::task {

// A trained model as one safetensors file: a tensor a parameter (float32, global shape), and in its metadata all that
// is needed to use it: `shardrun.model` ([model] as an INI section) and, for text, `shardrun.tokenizer` (JSON).

/// Writes the states of one kind. The path holds the old file until all of the new one is there. Throws Error{io}.
void save_states(const std::filesystem::path& path, const graph::Graph& graph, graph::StateKind kind,
                 const runtime::Executor& executor, const checkpoint::Metadata& metadata);

/// What this rank holds of the states of one kind, in a file of its own beside `path`.
void save_part(const std::filesystem::path& path, const graph::Graph& graph, graph::StateKind kind,
               const runtime::Executor& executor, std::int64_t rank);

/// `path` from the files that every rank's `save_part` has left, which are removed. Of replicas the first is taken.
void join_parts(const std::filesystem::path& path, const graph::Graph& graph, graph::StateKind kind,
                const partition::Partition& partition, const checkpoint::Metadata& metadata);

[[nodiscard]] checkpoint::Metadata describe_model(const job::Chosen& model, const models::ModelSettings& settings,
                                                  const data::Tokenizer* tokenizer);

/// A model read back.
struct TrainedModel {
  const models::Model* model = nullptr;
  models::ModelSettings settings;
  std::optional<data::Tokenizer> tokenizer;
};

/// Throws Error{data} where the file was not written by `save_states` with `describe_model`.
[[nodiscard]] TrainedModel read_model(const checkpoint::SafetensorsFile& file);

/// Copies the file's tensors into the parameters of the same name. Throws Error{data} for one that is missing, of
/// another shape, not float32, or with a value that is NaN or infinite.
void load_parameters(const checkpoint::SafetensorsFile& file, const graph::Graph& graph,
                     const runtime::Executor& executor);

}  // namespace shardrun::task
