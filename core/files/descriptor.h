#pragma once

#include <cstddef>
#include <filesystem>
#include <span>
#include <string_view>

#include "core/base/error.h"

namespace shardrun::files {

/// Owns an open file descriptor, or none.
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

/// An error "cannot ATTEMPTED 'PATH': what the system says", with advice for causes that a user can fix.
[[nodiscard]] Error system_error(std::string_view attempted, const std::filesystem::path& path, int error_number);

/// Like system_error(), for a file that is only read. It is Error{data}, because the user can fix the file, unless the
/// system lacks resources.
[[nodiscard]] Error unreadable(std::string_view attempted, const std::filesystem::path& path, int error_number);

/// Like system_error(), for a folder that the user chose for writing. It is Error{data} if the choice is at fault: no
/// such path can exist, or the folder is not writable.
[[nodiscard]] Error unwritable(std::string_view attempted, const std::filesystem::path& path, int error_number);

/// Writes all of `bytes` at the descriptor's position, continuing after interrupts and short writes. Throws Error{io};
/// then some bytes may have been written. `path` is used in the message.
void write_all(const FileDescriptor& file, std::span<const std::byte> bytes, const std::filesystem::path& path);

}  // namespace shardrun::files
