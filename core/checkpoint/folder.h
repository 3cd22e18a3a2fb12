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
// .step-000120.tmp, and while it is removed it is .step-000120.removed. So the name alone says whether a checkpoint is
// complete.

/// The name of a checkpoint's folder: "step-000120".
[[nodiscard]] std::string folder_name(std::int64_t step);

/// The step in a checkpoint's name; nothing for other names.
[[nodiscard]] std::optional<std::int64_t> step_of_folder(std::string_view name);

/// A folder with the name of a checkpoint.
struct Listed {
  std::filesystem::path path;
  std::int64_t step = 0;
  bool has_manifest = true;  ///< false: the manifest was removed
};

/// The checkpoints in a folder, in order of their steps. Empty if there is no such folder.
[[nodiscard]] std::vector<Listed> list_checkpoints(const std::filesystem::path& root);

/// The checkpoints to which a path refers. `given` itself is the only one if it has a manifest or a checkpoint's name;
/// without the name, its step is -1. Otherwise they are the checkpoints in `given` or, if there are none, those in its
/// subfolder `checkpoints` (a run's folder has one).
[[nodiscard]] std::vector<Listed> checkpoints_at(const std::filesystem::path& given);

/// Makes the folder into which ranks will write a checkpoint, and returns its path. Removes what an interrupted attempt
/// has left. Throws Error{io}.
[[nodiscard]] std::filesystem::path begin_checkpoint(const std::filesystem::path& root, std::int64_t step);

/// Throws Error{usage} if a file lies in a folder of `root` that begin_checkpoint() would remove.
void require_none_unfinished(const std::filesystem::path& root, std::span<const std::filesystem::path> files);

/// The path that begin_checkpoint() returns.
[[nodiscard]] std::filesystem::path unfinished_path(const std::filesystem::path& root, std::int64_t step);

/// Completes a checkpoint whose files are all written and durable: writes its manifest, and gives the folder its name.
/// Replaces a checkpoint of the same step. Throws Error{io}, also if a file is missing or has another size.
void commit_checkpoint(const std::filesystem::path& root, const Manifest& manifest);

/// Locks a folder of checkpoints for one writer while the result lives, unless the file system has no locks. Makes the
/// folder if it is missing. Throws Error{io} if another process has the lock; Error{data} if the folder cannot be made
/// or has links of other users.
[[nodiscard]] files::Folder lock_checkpoints(const std::filesystem::path& root);

/// Which checkpoints are kept.
struct Keeping {
  std::int64_t newest = 0;  ///< keeps this many of the newest checkpoints; 0: keeps all
  std::int64_t every = 0;   ///< also keeps checkpoints whose step is a multiple of this; 0: no others
};

/// Removes all checkpoints that `keeping` does not keep. `is_whole` says whether a run could continue from the
/// checkpoint at a path. A checkpoint that is not whole is neither removed nor counted as one of the newest.
/// Throws Error{io}.
void remove_old_checkpoints(const std::filesystem::path& root, const Keeping& keeping,
                            const std::function<bool(const std::filesystem::path&)>& is_whole);

/// Removes all checkpoints, including those that set_aside() has renamed. Throws Error{io}.
void remove_checkpoints(const std::filesystem::path& root);

/// Renames a damaged checkpoint, such as step-000120, to step-000120.damaged. Nothing reads or counts it any more; only
/// remove_checkpoints() removes it. Returns the new path. Throws Error{io}.
[[nodiscard]] std::filesystem::path set_aside(const std::filesystem::path& checkpoint);

/// The folders in `root` that set_aside() has renamed.
[[nodiscard]] std::vector<std::filesystem::path> checkpoints_set_aside(const std::filesystem::path& root);

/// Removes the checkpoints whose writing or removal was interrupted. Ignores errors.
void remove_unfinished_checkpoints(const std::filesystem::path& root) noexcept;

}  // namespace shardrun::checkpoint
