#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/checkpoint/manifest.h"
#include "core/files/folder.h"

namespace shardrun::checkpoint {

// A folder of checkpoints. A complete checkpoint has a name such as step-000120. While it is written it is
// .step-000120.tmp, and while it is removed .step-000100.removed. So the name alone says whether a checkpoint is
// complete.

/// The name of a checkpoint's folder: "step-000120".
[[nodiscard]] std::string folder_name(std::int64_t step);

/// The step in a checkpoint's name; nothing for other names.
[[nodiscard]] std::optional<std::int64_t> step_of_folder(std::string_view name);

/// A folder with the name of a checkpoint.
struct Listed {
  std::filesystem::path path;
  std::int64_t step = 0;
  bool has_manifest = true;  ///< false: the manifest is missing, so somebody has removed it
};

/// The checkpoints in a folder, in order of their steps. Empty if there is no such folder.
[[nodiscard]] std::vector<Listed> list_checkpoints(const std::filesystem::path& root);

/// The checkpoints to which a path refers: the path itself, those in it, or those in its folder `checkpoints`, which a
/// run's folder has. Every folder with a manifest counts as a checkpoint; if its name is another, its step is -1.
[[nodiscard]] std::vector<Listed> checkpoints_at(const std::filesystem::path& given);

/// Makes the folder of a checkpoint, into which ranks will write. Removes what an earlier attempt has left. Returns its
/// path. Throws Error{io}.
[[nodiscard]] std::filesystem::path begin_checkpoint(const std::filesystem::path& root, std::int64_t step);

/// Throws Error{usage} if one of the files lies in a folder that begin_checkpoint() would remove from the root.
void require_none_unfinished(const std::filesystem::path& root, std::span<const std::filesystem::path> files);

/// The path that begin_checkpoint() returns.
[[nodiscard]] std::filesystem::path unfinished_path(const std::filesystem::path& root, std::int64_t step);

/// Completes a checkpoint whose files are all written and durable: writes its manifest, and gives the folder its name.
/// Replaces a checkpoint of the same step. Throws Error{io} if a file is missing or has another size, or if the system
/// refuses.
void commit_checkpoint(const std::filesystem::path& root, const Manifest& manifest);

/// Locks a folder of checkpoints for one writer, as long as the result lives. Makes the folder if it is missing. Throws
/// Error{io} if another process has locked it. On a file system that cannot lock folders it has no effect.
[[nodiscard]] files::Folder lock_checkpoints(const std::filesystem::path& root);

/// Which checkpoints are kept.
struct Keeping {
  std::int64_t newest = 0;  ///< this many newest ones; 0: all
  std::int64_t every = 0;   ///< those whose step is a multiple of this; 0: none
};

/// Removes all checkpoints that `keeping` does not keep. `is_whole` says whether a run could continue from the
/// checkpoint at a path. If not, the checkpoint is neither counted nor removed, so it never takes the place of a usable
/// one. Throws Error{io}.
void remove_old_checkpoints(const std::filesystem::path& root, const Keeping& keeping,
                            const std::function<bool(const std::filesystem::path&)>& is_whole);

/// Removes all checkpoints, also those that set_aside() has renamed. Throws Error{io}.
void remove_checkpoints(const std::filesystem::path& root);

/// Renames a damaged checkpoint, such as step-000120, to step-000120.damaged. That is not a checkpoint's name: from
/// then on it is not read, counted or removed. Returns the new path. Throws Error{io}.
[[nodiscard]] std::filesystem::path set_aside(const std::filesystem::path& checkpoint);

/// The folders in `root` that set_aside() has renamed.
[[nodiscard]] std::vector<std::filesystem::path> checkpoints_set_aside(const std::filesystem::path& root);

/// Removes the checkpoints whose writing or removal was interrupted. Ignores errors.
void remove_unfinished_checkpoints(const std::filesystem::path& root) noexcept;

}  // namespace shardrun::checkpoint
