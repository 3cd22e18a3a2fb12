#pragma once

#include <filesystem>
#include <string_view>

#include "core/files/descriptor.h"

namespace shardrun::files {

/// A temporary folder, locked while this object lives. The destructor removes it with its content.
class ScratchFolder {
 public:
  /// Also removes this user's folders of the same name whose processes were killed. `name`: the beginning of its name.
  /// `what`: what is kept there, for messages. Throws Error{usage} if none can be made.
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
