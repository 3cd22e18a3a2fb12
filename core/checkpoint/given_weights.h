#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "core/checkpoint/hub_folder.h"
#include "core/checkpoint/open_checkpoint.h"
#include "core/checkpoint/tensor_source.h"
#include "core/graph/graph.h"
#include "core/job/job.h"
#include "core/job/raw.h"
#include "core/runtime/executor.h"
#include "core/workload/model.h"

namespace shardrun::checkpoint {

/// The weights to which a path refers: the folder of a run, a weights file, a checkpoint, a model folder of Hugging
/// Face's libraries, or a GGUF file. In a run's folder, they are those in weights.safetensors, or those of the newest
/// checkpoint if that is newer and the run has not finished.
class GivenWeights {
 public:
  /// Opens the files, but reads no weights. `models`: those that a hub folder or GGUF file can contain. Throws
  /// Error{data}, Error{io}, or Error{usage} for the folder of an iterated run.
  GivenWeights(const std::filesystem::path& path, const workload::Models& models);
  GivenWeights(const GivenWeights&) = delete;
  GivenWeights& operator=(const GivenWeights&) = delete;

  [[nodiscard]] const TensorSource& source() const noexcept { return source_; }
  /// The job of the run that wrote the weights; nothing for a file or a hub model. `overrides`: as in read_job_file().
  [[nodiscard]] std::optional<job::RawJob> job(std::span<const std::string> overrides = {}) const;
  /// The checkpoint that was chosen in a folder of a run or of checkpoints; nothing if none had to be chosen.
  [[nodiscard]] const std::optional<std::filesystem::path>& chosen() const noexcept { return chosen_; }
  [[nodiscard]] std::int64_t step() const noexcept { return checkpoint_ ? checkpoint_->manifest().step : 0; }
  /// Whether the weights are in a folder of Hugging Face's libraries or in a GGUF file.
  [[nodiscard]] bool is_hub() const noexcept { return hub_.has_value(); }
  /// Whether the weights are in a GGUF file with quantised tensors.
  [[nodiscard]] bool is_quantised() const { return hub_ && hub_->is_quantised(); }
  /// The longest context that the model knows, in tokens, from its config or its [model] section. Nothing if the
  /// section has no context. Throws Error{data} if the weights' metadata has no such section.
  [[nodiscard]] std::optional<std::int64_t> known_context() const;
  /// A note for the user about how a hub folder or GGUF file was read; "" if there is none.
  [[nodiscard]] std::string note() const { return hub_ ? hub_->note() : ""; }
  /// Compares all bytes of a checkpoint with its hashes. Does nothing for other weights. Throws Error{data}, Error{io}.
  void check() const;
  /// A text that identifies the weights. All processes of a job must get the same one.
  [[nodiscard]] std::string fingerprint() const;

 private:
  void open_file(const std::filesystem::path& path);
  void open_checkpoint(const std::filesystem::path& path, const std::filesystem::path& given);

  std::optional<SafetensorsFile> file_;
  std::optional<OpenCheckpoint> checkpoint_;
  std::optional<HubFolder> hub_;
  std::optional<std::filesystem::path> job_file_;
  std::optional<std::filesystem::path> chosen_;
  TensorSource source_;
};

/// The type in which a generating job keeps the matrices of these weights. `weights`: null if the job names none.
[[nodiscard]] graph::DType type_of_matrices(job::Weights setting, const GivenWeights* weights);
/// The type to which products with such matrices round activations. Throws Error{job} if the setting has no effect.
[[nodiscard]] graph::DType type_of_activations(job::RealType setting, graph::DType matrices);

/// Throws Error{data} if the metadata says that the weights belong to another model.
void require_model(const TensorSource& source, const std::string& model);

/// Throws Error{data} if a parameter of the graph is missing, has another shape, or is not of a real type.
void require_parameters(const TensorSource& source, const graph::Graph& graph);

/// Loads this rank's parts of the parameters, converted to the types of their states. Throws as require_parameters()
/// and `given.read` do, and Error{data} if a value is NaN or infinite, or would become infinite.
void load_parameters(const TensorSource& given, const graph::Graph& graph, const runtime::Executor& executor);

}  // namespace shardrun::checkpoint
