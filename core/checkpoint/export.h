#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "core/checkpoint/tensor_source.h"

namespace shardrun::checkpoint {

struct ExportSettings {
  std::uint64_t max_bytes = 0;     ///< of the tensors in one file; a larger tensor has a file of its own
  std::optional<DType> type = {};  ///< of real tensors; nothing: as they are stored
};

struct Exported {
  std::vector<std::filesystem::path> files;  ///< the index is the last
  std::int64_t tensors = 0;
  std::uint64_t bytes = 0;  ///< of the tensors
};

/// Writes one file. Until it is complete, the path has the old one. Throws Error{data} or Error{io}; Error{usage} if it
/// would replace a file that is read, or lie in a checkpoint.
[[nodiscard]] Exported export_file(const TensorSource& source, const std::filesystem::path& path,
                                   std::optional<DType> type);

/// Writes a folder as Hugging Face's libraries read it: model.safetensors, or if that would be larger than `max_bytes`
/// files of at most so many and an index that names them. The folder has all old tensors or all new ones: a new index
/// names only files with new names. Removes the old files then. Throws as export_file().
[[nodiscard]] Exported export_folder(const TensorSource& source, const std::filesystem::path& folder,
                                     const ExportSettings& settings);

}  // namespace shardrun::checkpoint
