#include "core/files/descriptor.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <system_error>
#include <utility>

#include "core/files/disk_room.h"
#include "core/files/folder.h"

namespace shardrun::files {
namespace {

std::string too_large() {
  const std::optional<std::uint64_t> limit = file_size_limit();
  return limit ? fmt::format("; the limit of a file's size (ulimit -f) is {} bytes: raise it (ulimit -f unlimited)",
                             *limit)
               : "; the file system takes no file as large";
}

std::string advice(int error_number) {
  switch (error_number) {
    case ENOSPC:
    case EDQUOT: return "; free some space there or choose another folder";
    case EROFS: return "; the file system is read-only: choose another folder";
    case EACCES:
    case EPERM: return "; check its permissions or choose another folder";
    case EMFILE:
    case ENFILE: return "; raise the limit of open files (ulimit -n)";
    case EFBIG: return too_large();
    default: return "";
  }
}

}  // namespace

FileDescriptor::FileDescriptor(FileDescriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

FileDescriptor& FileDescriptor::operator=(FileDescriptor&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

FileDescriptor::~FileDescriptor() {
  if (fd_ >= 0) {
    ::close(fd_);
  }
}

Error system_error(std::string_view attempted, const std::filesystem::path& path, int error_number) {
  return Error(ErrorCode::io, fmt::format("cannot {} '{}': {}{}", attempted, shown(path).native(),
                                          std::generic_category().message(error_number), advice(error_number)));
}

Error unreadable(std::string_view attempted, const std::filesystem::path& path, int error_number) {
  const Error error = system_error(attempted, path, error_number);
  const bool is_shortage = error_number == EMFILE || error_number == ENFILE || error_number == ENOMEM;
  return is_shortage ? error : Error(ErrorCode::data, error.message());
}

Error unwritable(std::string_view attempted, const std::filesystem::path& path, int error_number) {
  constexpr int of_choice[] = {ENOENT, ENOTDIR, EACCES, EPERM, EROFS, ENAMETOOLONG, ELOOP, EINVAL, EEXIST};
  const Error error = system_error(attempted, path, error_number);
  return std::ranges::find(of_choice, error_number) == std::end(of_choice) ? error
                                                                           : Error(ErrorCode::data, error.message());
}

void write_all(const FileDescriptor& file, std::span<const std::byte> bytes, const std::filesystem::path& path) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(file.get(), bytes.data(), bytes.size());
    if (written < 0 && errno == EINTR) {
      continue;
    }
    if (written < 0) {
      throw system_error("write", path, errno);
    }
    bytes = bytes.subspan(static_cast<std::size_t>(written));
  }
}

}  // namespace shardrun::files
