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

// A folder of checkpoints. One that is complete has a name such as step-000120. While it is written it is
// .step-000120.tmp, and while it is removed .step-000100.removed: a name says whether a checkpoint is whole, and no
// other file does.

/// "step-000120"
[[nodiscard]] std::string folder_name(std::int64_t step);

/// The step that a checkpoint's name says; nothing for other names.
[[nodiscard]] std::optional<std::int64_t> step_of_folder(std::string_view name);

/// A folder that has the name of a checkpoint.
struct Listed {
  std::filesystem::path path;
  std::int64_t step = 0;
  bool has_manifest = true;  ///< if not, somebody has removed it
};

/// The checkpoints in a folder, in order of their steps. Nothing if there is no such folder.
[[nodiscard]] std::vector<Listed> list_checkpoints(const std::filesystem::path& root);

/// The checkpoints that a path names: itself, or those in it, or those in its folder `checkpoints`, as a run's folder
/// has one. Whatever has a manifest is a checkpoint, also under another name; its step is then -1.
[[nodiscard]] std::vector<Listed> checkpoints_at(const std::filesystem::path& given);

/// Makes the folder of a checkpoint, for ranks to write into. Removes what an earlier attempt has left. Returns its
/// path. Throws Error{io}.
[[nodiscard]] std::filesystem::path begin_checkpoint(const std::filesystem::path& root, std::int64_t step);

/// Throws Error{usage} if one of the files lies in a folder that begin_checkpoint() would remove from the root.
void require_none_unfinished(const std::filesystem::path& root, std::span<const std::filesystem::path> files);

/// The path that begin_checkpoint() returns.
[[nodiscard]] std::filesystem::path unfinished_path(const std::filesystem::path& root, std::int64_t step);

/// Completes a checkpoint whose files are all there and durable: writes its manifest, and gives the folder its name.
/// Replaces a checkpoint of the same step. Throws Error{io} if a file is missing or has another size, or if the system
/// refuses.
void commit_checkpoint(const std::filesystem::path& root, const Manifest& manifest);

/// Locks a folder of checkpoints for one writer as long as the result lives; makes the folder if it is missing. Throws
/// Error{io} if another has locked it. A file system that cannot lock folders locks
/// nothing.
[[nodiscard]] files::Folder lock_checkpoints(const std::filesystem::path& root);

/// Which checkpoints stay.
struct Keeping {
  std::int64_t newest = 0;  ///< so many; 0: all
  std::int64_t every = 0;   ///< steps that are multiples of this stay; 0: none
};

/// Removes all checkpoints but those that stay. `is_whole` says whether a run could go on from the checkpoint at a
/// path. If not, the checkpoint is neither counted nor removed, so it never takes the place of a whole one. Throws
/// Error{io}.
void remove_old_checkpoints(const std::filesystem::path& root, const Keeping& keeping,
                            const std::function<bool(const std::filesystem::path&)>& is_whole);

/// Removes all checkpoints, also those that set_aside() has renamed. Throws Error{io}.
void remove_checkpoints(const std::filesystem::path& root);

/// Renames a damaged checkpoint, such as step-000120, to step-000120.damaged, which is no checkpoint's name: nothing
/// reads, counts or removes it from then on. Returns the new path. Throws Error{io}.
[[nodiscard]] std::filesystem::path set_aside(const std::filesystem::path& checkpoint);

/// The folders that set_aside() has made there.
[[nodiscard]] std::vector<std::filesystem::path> checkpoints_set_aside(const std::filesystem::path& root);

/// Removes the checkpoints whose writing or removal was interrupted. Ignores errors.
void remove_unfinished_checkpoints(const std::filesystem::path& root) noexcept;

}  // namespace shardrun::checkpoint
