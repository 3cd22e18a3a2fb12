#pragma once

#include <shardrun/sdk/model/hub.hpp>

#include <cstddef>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/checkpoint/tensor_source.h"
#include "core/files/gguf.h"
#include "core/files/steady_file.h"

namespace shardrun::checkpoint {

/// A model in a GGUF file or in the parts of a split file. Its settings have the keys of Hugging Face's config.json,
/// and its tensors have the names of Hugging Face's models. If the architecture is unknown, keys and names are the
/// file's.
class GgufModel {
 public:
  /// `path`: the file, or the first of its parts. Reads no tensor except rope_freqs. Throws Error{data}, Error{io}.
  explicit GgufModel(const std::filesystem::path& path);
  GgufModel(const GgufModel&) = delete;
  GgufModel& operator=(const GgufModel&) = delete;

  [[nodiscard]] const std::vector<sdk::ConfigValue>& config() const noexcept { return config_; }
  /// The tensors as float32. Reading part of a quantised tensor converts only the blocks that contain it.
  [[nodiscard]] const TensorSource& source() const noexcept { return source_; }
  /// Whether any tensor is of a quantised type, such as Q8_0.
  [[nodiscard]] bool is_quantised() const;
  [[nodiscard]] bool has_tokenizer() const { return contents_.metadata.contains("tokenizer.ggml.model"); }
  /// A text that identifies the content of all parts.
  [[nodiscard]] std::string fingerprint() const;

 private:
  [[nodiscard]] std::vector<const files::SteadyFile*> open_parts(const std::filesystem::path& path);

  std::vector<std::unique_ptr<files::SteadyFile>> parts_;
  files::GgufContents contents_;  ///< the metadata of the first part, the tensors of all parts
  std::vector<sdk::ConfigValue> config_;
  TensorSource source_;
};

/// Converts whole blocks to float32, with the same bits as gguf-py. REQUIRES: `to` has room for exactly the elements of
/// `blocks`.
void dequantise(files::GgufType type, std::span<const std::byte> blocks, std::span<float> to);

}  // namespace shardrun::checkpoint
