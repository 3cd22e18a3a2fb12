#pragma once

#include <filesystem>
#include <string_view>

#include "core/files/descriptor.h"

namespace shardrun::files {

/// A folder that is held open. Paths below `root()` lead into this folder wherever it is moved, and nowhere once it is
/// removed. They never lead into another folder that took its place. They are valid only in this process.
class Folder {
 public:
  /// Throws Error{io}.
  explicit Folder(const std::filesystem::path& path);

  [[nodiscard]] const FileDescriptor& descriptor() const noexcept { return descriptor_; }
  [[nodiscard]] const std::filesystem::path& root() const noexcept { return root_; }

 private:
  FileDescriptor descriptor_;
  std::filesystem::path root_;
};

/// Makes the names in a folder durable, after files were created, renamed or removed. Throws Error{io}.
void sync_folder(const std::filesystem::path& folder);

/// The function system_error() or unwritable().
using SystemError = Error (*)(std::string_view attempted, const std::filesystem::path& path, int error_number);

/// Creates a folder and its parents if they are missing, and makes their names durable. `what`: "the output folder",
/// for the message. Throws what `error` makes, and Error{io}.
void create_folders(const std::filesystem::path& path, std::string_view what = "the folder",
                    SystemError error = system_error);

/// A path for people. A path below the root of an open folder is shown with the folder's present location.
[[nodiscard]] std::filesystem::path shown(const std::filesystem::path& path);
/// Like shown(), without '.' and '..', and relative to the working directory if that is shorter.
[[nodiscard]] std::string human_path(const std::filesystem::path& path);

}  // namespace shardrun::files
