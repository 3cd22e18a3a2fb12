#pragma once

#include <filesystem>
#include <string_view>

#include "core/files/descriptor.h"

namespace shardrun::files {

/// A temporary folder, locked while this object lives. The destructor removes it with its content.
class ScratchFolder {
 public:
  /// Makes the folder, and removes those that this user's killed processes have left. `name`: the beginning of the
  /// folder's name. `what`: what is kept there, for messages. Throws Error{usage} if no folder can be made.
  ScratchFolder(std::string_view name, std::string_view what);
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  ~ScratchFolder();

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }

 private:
  std::filesystem::path path_;
  FileDescriptor lock_;
};

}  // namespace shardrun::files
