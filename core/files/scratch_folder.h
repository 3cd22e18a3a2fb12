#pragma once

#include <filesystem>
#include <string_view>

namespace shardrun::files {

/// A folder in the directory for temporary files. The destructor removes it with its content.
class ScratchFolder {
 public:
  /// `purpose`: part of its name. Throws Error{usage} if no folder can be made.
  explicit ScratchFolder(std::string_view purpose);
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  ~ScratchFolder();

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace shardrun::files
