#pragma once

#include <filesystem>
#include <string_view>

#include "core/files/descriptor.h"

namespace shardrun::files {

/// A folder that is held open. Paths below root() refer to this folder even after it has been renamed or moved; they
/// are invalid once it is removed, and never refer to another folder in its place. They are valid only in this process.
class Folder {
 public:
  /// Opens the folder. Throws Error{io}.
  explicit Folder(const std::filesystem::path& path);

  [[nodiscard]] const FileDescriptor& descriptor() const noexcept { return descriptor_; }
  [[nodiscard]] const std::filesystem::path& root() const noexcept { return root_; }

 private:
  FileDescriptor descriptor_;
  std::filesystem::path root_;
};

/// Makes the names in a folder durable, after files were created, renamed or removed. Throws Error{io}.
void sync_folder(const std::filesystem::path& folder);

/// The type of system_error() and unwritable().
using SystemError = Error (*)(std::string_view attempted, const std::filesystem::path& path, int error_number);

/// Creates a folder and its parents if they are missing, and makes their names durable. `what` names the folder in
/// messages: "the output folder". Throws Error{io}, or the error that `error` makes if a folder cannot be created.
void create_folders(const std::filesystem::path& path, std::string_view what = "the folder",
                    SystemError error = system_error);

/// A path in a form for users. A path below the root() of a Folder is shown with the folder's present path.
[[nodiscard]] std::filesystem::path shown(const std::filesystem::path& path);
/// Like shown(), without "." and "..", and relative to the working directory if that is shorter.
[[nodiscard]] std::string human_path(const std::filesystem::path& path);

}  // namespace shardrun::files
