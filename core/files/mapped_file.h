#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "core/files/descriptor.h"

namespace shardrun::files {

/// A whole regular file, mapped read-only. The kernel reads pages when they are touched, and can drop them again.
/// REQUIRES: nobody truncates the file while it is mapped, because touching a page after the new end raises SIGBUS.
/// Files that this project writes are replaced, never truncated.
class MappedFile {
 public:
  /// Maps the file. Throws Error{data} if the path does not exist, is not a regular file or cannot be read; Error{io}
  /// if the system lacks descriptors or memory.
  explicit MappedFile(std::filesystem::path path);
  /// Maps the first `size` bytes of an open file. `path` names it in messages. Throws like the other constructor.
  MappedFile(const FileDescriptor& file, std::size_t size, std::filesystem::path path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  [[nodiscard]] const std::filesystem::path& path() const noexcept { return path_; }
  [[nodiscard]] std::span<const std::byte> bytes() const noexcept { return {data_, size_}; }
  [[nodiscard]] std::string_view text() const noexcept { return {reinterpret_cast<const char*>(data_), size_}; }

 private:
  void map(const FileDescriptor& file, std::size_t size);

  std::filesystem::path path_;
  const std::byte* data_ = nullptr;
  std::size_t size_ = 0;
};

/// The content of a regular file, which must be UTF-8 without NUL. Throws Error{data} if it is not, or if it has more
/// than `most` bytes. Also throws as MappedFile does.
[[nodiscard]] std::string read_text_file(const std::filesystem::path& path, std::size_t most);

}  // namespace shardrun::files
