#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "core/checkpoint/hub_folder.h"
#include "core/checkpoint/open_checkpoint.h"
#include "core/checkpoint/tensor_source.h"
#include "core/graph/graph.h"
#include "core/job/raw.h"
#include "core/runtime/executor.h"
#include "core/workload/model.h"

namespace shardrun::checkpoint {

/// The weights that a path names: a run's folder, a weights file, a checkpoint, or a folder of Hugging Face's libraries
/// or a GGUF file (hub_folder.h). A run's folder means the newer of its weights and its newest checkpoint.
class GivenWeights {
 public:
  /// Reads no tensor. `models`: those that folders of others may hold. Throws Error{usage, data}.
  GivenWeights(const std::filesystem::path& path, const workload::Models& models);
  GivenWeights(const GivenWeights&) = delete;
  GivenWeights& operator=(const GivenWeights&) = delete;

  [[nodiscard]] const TensorSource& source() const noexcept { return source_; }
  /// The job of the run that wrote them; nothing for a weights file by itself. `overrides`: as in read_job_file().
  [[nodiscard]] std::optional<job::RawJob> job(std::span<const std::string> overrides = {}) const;
  /// The checkpoint that was chosen; nothing if the path names it, or for a file.
  [[nodiscard]] const std::optional<std::filesystem::path>& chosen() const noexcept { return chosen_; }
  [[nodiscard]] std::int64_t step() const noexcept { return checkpoint_ ? checkpoint_->manifest().step : 0; }
  /// Whether they are in a folder or file of others.
  [[nodiscard]] bool is_hub() const noexcept { return hub_.has_value(); }
  /// How a folder or file of others was read, where the user may want to know; empty: nothing.
  [[nodiscard]] std::string note() const { return hub_ ? hub_->note() : ""; }
  /// Compares all bytes of a checkpoint with its hashes. Throws Error{data}.
  void check() const;
  /// Identifies the weights: all processes of a job must find the same.
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

/// Throws Error{data} if the source says that it holds another model.
void require_model(const TensorSource& source, const std::string& model);

/// Throws Error{data} if the source lacks a parameter of the graph, or has it in another shape or as no real type.
void require_parameters(const TensorSource& source, const graph::Graph& graph);

/// Copies this rank's parts of the parameters, converted to float32. Throws as require_parameters(), and Error{data}
/// for a value that is NaN or infinite.
void load_parameters(const TensorSource& source, const graph::Graph& graph, const runtime::Executor& executor);

}  // namespace shardrun::checkpoint
