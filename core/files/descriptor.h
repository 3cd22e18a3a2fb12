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

/// "cannot ATTEMPTED 'PATH': what the system says", with advice for causes that a user can fix.
[[nodiscard]] Error system_error(std::string_view attempted, const std::filesystem::path& path, int error_number);

/// As system_error(), for a file that is only read. Error{data}, because the file is the user's to fix, unless the
/// system is short of resources.
[[nodiscard]] Error unreadable(std::string_view attempted, const std::filesystem::path& path, int error_number);

/// As system_error(), for a folder that the user chose to be written to. Error{data} if the choice is at fault: there
/// can be no such path, or it may not be written.
[[nodiscard]] Error unwritable(std::string_view attempted, const std::filesystem::path& path, int error_number);

/// Writes all of `bytes` at the descriptor's position, continuing after interrupts and short writes. Throws Error{io};
/// bytes already written stay. `path` is for the message.
void write_all(const FileDescriptor& file, std::span<const std::byte> bytes, const std::filesystem::path& path);

}  // namespace shardrun::files
