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

// A model folder of Hugging Face's `transformers` has a config.json, and safetensors files with that library's tensor
// names. A model plugin translates both (shardrun/model.h). A GGUF file is presented as such a folder (gguf_model.h).

/// Whether the path is a folder with a config.json, or a GGUF file.
[[nodiscard]] bool is_hub_model(const std::filesystem::path& path);

/// A key of config.json, and its effect on the model's options.
struct UnderstoodKey {
  std::string key;    ///< "a.b" for a key of a nested object
  std::string value;  ///< the value as text
  std::string meaning;
};

/// A hub folder or GGUF file whose tensors are the weights of a known model.
class HubFolder {
 public:
  /// Opens the files without reading tensors. Throws Error{data} if no model supports the architecture, if config.json
  /// has an unknown key or an unsupported value, or if tensors are missing, unknown or of another shape.
  HubFolder(const std::filesystem::path& path, const workload::Models& models);
  HubFolder(const HubFolder&) = delete;
  HubFolder& operator=(const HubFolder&) = delete;

  /// The parameters under the names of the model's states. Their metadata describes the trained model
  /// and its tokenizer.
  [[nodiscard]] const TensorSource& source() const noexcept { return source_; }
  /// A text that identifies the weights.
  [[nodiscard]] std::string fingerprint() const { return gguf_ ? gguf_->fingerprint() : files_->fingerprint(); }
  /// The text of a config.json for a folder whose tensors have this type. Throws Error{data} if it cannot be read.
  [[nodiscard]] std::string config(DType type) const;
  /// All keys of config.json, in order, with their meanings. A key's meaning lists the options of the model that differ
  /// if the key is removed or, if none do, if its value is changed.
  [[nodiscard]] std::vector<UnderstoodKey> understood_keys() const;
  /// The tensors under their names in the folder. Those of a GGUF file are converted to float32.
  [[nodiscard]] const TensorSource& tensors() const noexcept { return gguf_ ? gguf_->source() : files_->source(); }
  /// Whether the weights are in a GGUF file with quantised tensors.
  [[nodiscard]] bool is_quantised() const { return gguf_ && gguf_->is_quantised(); }
  /// A note for the user about how config.json was read; "" if there is none.
  [[nodiscard]] const std::string& note() const noexcept { return note_; }
  /// The longest context that the model knows, in tokens. REQUIRES: the model has the option `context`.
  [[nodiscard]] std::int64_t known_context() const { return unbound_.options.integer("context"); }

 private:
  void read(const std::filesystem::path& file, const workload::Models& models);

  std::optional<TensorFiles> files_;  ///< set for a folder
  std::optional<GgufModel> gguf_;     ///< set for a GGUF file
  std::vector<sdk::ConfigValue> config_;
  TensorSource source_;
  workload::Model model_;
  workload::ModelSettings unbound_;  ///< settings with the largest context that the model supports
  std::string section_;              ///< the [model] section that describes the model
  std::string note_;
};

/// The parameters of a model under the names that its hub folder uses. The object from which `weights` reads must
/// outlive the result. Throws Error{usage} if the model has no form for hub folders, Error{data} if one is missing.
[[nodiscard]] TensorSource hub_tensors(const TensorSource& weights, const workload::Model& model,
                                       const workload::ModelSettings& settings);

/// The parameters of a model, read from tensors with the names of its hub folder. The object from which `files` reads
/// must outlive the result. Throws Error{data} if a tensor is missing, unknown, of another shape, or incomplete.
[[nodiscard]] TensorSource states_of_hub(const TensorSource& files, const workload::Model& model,
                                         const workload::ModelSettings& settings);

/// The text of the model's config.json. `type`: the type of the folder's tensors.
[[nodiscard]] std::string hub_config(const workload::Model& model, const workload::ModelSettings& settings, DType type);

}  // namespace shardrun::checkpoint
