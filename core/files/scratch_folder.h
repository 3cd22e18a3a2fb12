#pragma once

#include <filesystem>
#include <string>
#include <string_view>

namespace shardrun::files {

/// A temporary folder. The destructor removes it with its content.
class ScratchFolder {
 public:
  /// `name`: the beginning of its name. `what`: what is kept there, for messages. Throws Error{usage} if none can be
  /// made.
  ScratchFolder(std::string_view name, std::string_view what);
  ScratchFolder(const ScratchFolder&) = delete;
  ScratchFolder& operator=(const ScratchFolder&) = delete;
  ~ScratchFolder();

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace shardrun::files
