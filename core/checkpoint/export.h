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

/// Writes all tensors to one file. Until it is complete, the path keeps the old file. Throws Error{data}, Error{io}, or
/// Error{usage} if it would replace a file that is being read or a file of a checkpoint.
[[nodiscard]] Exported export_file(const TensorSource& source, const std::filesystem::path& path,
                                   std::optional<DType> type);

/// Writes a folder in the form of Hugging Face's libraries: model.safetensors or, if that would be larger than
/// `max_bytes`, several files of at most that size and an index that names them. At any time readers find all old
/// tensors or all new ones, because a new index names only new files. Removes the old files at the end. Throws as
/// export_file().
[[nodiscard]] Exported export_folder(const TensorSource& source, const std::filesystem::path& folder,
                                     const ExportSettings& settings);

}  // namespace shardrun::checkpoint
