#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string_view>

#include "core/base/error.h"

namespace shardrun::files {

/// Owns an open file descriptor, or none. The destructor closes it.
class FileDescriptor {
 public:
  FileDescriptor() = default;
  explicit FileDescriptor(int fd) noexcept : fd_(fd) {}
  FileDescriptor(FileDescriptor&& other) noexcept;
  FileDescriptor& operator=(FileDescriptor&& other) noexcept;
  ~FileDescriptor();

  [[nodiscard]] int get() const noexcept { return fd_; }
  [[nodiscard]] bool is_open() const noexcept { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

/// Makes an Error{io} "cannot ATTEMPTED 'PATH': REASON" from an errno, with advice if the user can fix the cause.
[[nodiscard]] Error system_error(std::string_view attempted, const std::filesystem::path& path, int error_number);

/// Like system_error(), for a file that is only read. The result is Error{data}, because the user can fix the file,
/// unless the system lacks resources.
[[nodiscard]] Error unreadable(std::string_view attempted, const std::filesystem::path& path, int error_number);

/// Like system_error(), for a place that the user chose for writing. The result is Error{data} if the choice is wrong:
/// a folder of the path is missing, no such path can exist, or it may not be written.
[[nodiscard]] Error unwritable(std::string_view attempted, const std::filesystem::path& path, int error_number);

/// Writes all of `bytes` at the descriptor's position. Continues after interrupts and short writes. Throws Error{io}
/// with `path`; the file can then have some of the bytes.
void write_all(const FileDescriptor& file, std::span<const std::byte> bytes, const std::filesystem::path& path);

}  // namespace shardrun::files
