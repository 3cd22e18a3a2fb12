#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "core/checkpoint/gguf_model.h"
#include "core/checkpoint/tensor_source.h"
#include "core/graph/graph.h"
#include "core/workload/model.h"

namespace shardrun::checkpoint {

// Folders of models that Hugging Face's libraries write and read: config.json, and safetensors with the names of the
// model's own library. A model plugin says what both mean (shardrun/model.h). A GGUF file is told as such a folder
// (gguf_model.h).

/// Whether the path is a folder with a config.json, or a GGUF file.
[[nodiscard]] bool is_hub_model(const std::filesystem::path& path);

/// A key of config.json, and what it does to the model.
struct UnderstoodKey {
  std::string key;    ///< of nested objects: "a.b"
  std::string value;  ///< as text
  std::string meaning;
};

/// Such a folder or file as weights of a model that there is here.
class HubFolder {
 public:
  /// Reads no tensor. Throws Error{data} where no model knows the architecture, a key of config.json is unknown or its
  /// value not supported, or tensors are missing, unknown or of another shape.
  HubFolder(const std::filesystem::path& path, const workload::Models& models);
  HubFolder(const HubFolder&) = delete;
  HubFolder& operator=(const HubFolder&) = delete;

  /// The parameters, under the names of the model's states, and the metadata of a trained model, with the
  /// tokenizer that is there.
  [[nodiscard]] const TensorSource& source() const noexcept { return source_; }
  /// Identifies the weights.
  [[nodiscard]] std::string fingerprint() const { return gguf_ ? gguf_->fingerprint() : files_->fingerprint(); }
  /// The text of config.json, for tensors of this type.
  [[nodiscard]] std::string config(DType type) const;
  /// All keys of config.json, in order. Each is left out once, and has another value once: its meaning is what then
  /// changes.
  [[nodiscard]] std::vector<UnderstoodKey> understood_keys() const;
  /// The tensors under the names that they have in the folder; of a GGUF file, as float32.
  [[nodiscard]] const TensorSource& tensors() const noexcept { return gguf_ ? gguf_->source() : files_->source(); }
  /// What the user may want to know of how config.json was read; empty: nothing.
  [[nodiscard]] const std::string& note() const noexcept { return note_; }

 private:
  void read(const std::filesystem::path& file, const workload::Models& models);

  std::optional<TensorFiles> files_;  ///< of a folder
  std::optional<GgufModel> gguf_;     ///< otherwise
  std::vector<sdk::ConfigValue> config_;
  TensorSource source_;
  workload::Model model_;
  workload::ModelSettings unbound_;  ///< with the context that the model knows
  std::string section_;              ///< that describes the model
  std::string note_;
};

/// The parameters of a model under the names that others give them. `weights` and `model` outlive it. Throws
/// Error{usage} if the model is not in folders of others.
[[nodiscard]] TensorSource hub_tensors(const TensorSource& weights, const workload::Model& model,
                                       const workload::ModelSettings& settings);

/// The parameters of a model from tensors under the names that others give them. `files` and `model` outlive it. Throws
/// Error{data} where tensors are missing, unknown or of another shape, or do not make up all parameters.
[[nodiscard]] TensorSource states_of_hub(const TensorSource& files, const workload::Model& model,
                                         const workload::ModelSettings& settings);

/// The text of its config.json. `type`: of the tensors in the folder.
[[nodiscard]] std::string hub_config(const workload::Model& model, const workload::ModelSettings& settings, DType type);

}  // namespace shardrun::checkpoint
