#pragma once

#include <filesystem>
#include <string_view>

#include "core/files/descriptor.h"

namespace shardrun::metrics {

/// A file to which whole records are appended, each at once: a reader never sees a part of a record, and no complete
/// one is lost when the process dies.
class AppendedFile {
 public:
  /// Creates the file, or continues at its end. Throws Error{io}.
  explicit AppendedFile(std::filesystem::path path);

  /// Throws Error{io}; then a partly written record is removed.
  void append(std::string_view record);

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }

 private:
  std::filesystem::path path_;
  files::FileDescriptor file_;
};

}  // namespace shardrun::metrics
