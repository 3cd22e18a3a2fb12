#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

#include "core/checkpoint/tensor_source.h"

namespace shardrun::checkpoint {

struct ExportSettings {
  std::uint64_t max_bytes = 0;     ///< limit for the tensors of one file; a larger tensor gets its own file
  std::optional<DType> type = {};  ///< type to which real tensors are converted; nothing: no conversion
};

struct Exported {
  std::vector<std::filesystem::path> files;  ///< the files written; the index, if there is one, is last
  std::int64_t tensors = 0;
  std::uint64_t bytes = 0;  ///< total bytes of the tensors
};

/// Writes all tensors to one file. The path keeps an old file until the new one is complete. Throws Error{data},
/// Error{io}, or Error{usage} if `path` is a file of the source or lies in a checkpoint's folder.
[[nodiscard]] Exported export_file(const TensorSource& source, const std::filesystem::path& path,
                                   std::optional<DType> type);

/// Writes a folder in the form of Hugging Face's libraries. It gets model.safetensors or, if the tensors exceed
/// `max_bytes`, several files and an index that names them. At any time readers find all old tensors or all new ones,
/// because a new index names only new files. Removes the old files at the end. Throws as export_file() does, with
/// `folder` for the path's folder.
[[nodiscard]] Exported export_folder(const TensorSource& source, const std::filesystem::path& folder,
                                     const ExportSettings& settings);

}  // namespace shardrun::checkpoint
