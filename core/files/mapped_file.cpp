#include "core/files/mapped_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "core/base/error.h"
#include "core/base/utf8.h"
#include "core/files/descriptor.h"
#include "core/files/folder.h"

namespace shardrun::files {
MappedFile::MappedFile(std::filesystem::path path) : path_(std::move(path)) {
  // With O_NONBLOCK, opening a named pipe does not wait for its other end; it is refused below.
  const FileDescriptor file(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.is_open()) {
    throw unreadable("read", path_, errno);
  }
  struct stat status = {};
  if (::fstat(file.get(), &status) != 0) {
    throw unreadable("read", path_, errno);
  }
  if (!S_ISREG(status.st_mode)) {
    throw Error(ErrorCode::data, fmt::format("cannot read '{}': it is {}, not a regular file", shown(path_).native(),
                                             S_ISDIR(status.st_mode) ? "a folder" : "a device or pipe"));
  }
  // Touching a mapped page that cannot be read would end the process. Reading a byte here gives an error instead.
  if (char first = 0; ::pread(file.get(), &first, 1, 0) < 0) {
    throw unreadable("read", path_, errno);
  }
  map(file, static_cast<std::size_t>(status.st_size));
}

MappedFile::MappedFile(const FileDescriptor& file, std::size_t size, std::filesystem::path path)
    : path_(std::move(path)) {
  map(file, size);
}

void MappedFile::map(const FileDescriptor& file, std::size_t size) {
  if (size == 0) {
    return;
  }
  void* mapping = ::mmap(nullptr, size, PROT_READ, MAP_PRIVATE, file.get(), 0);
  if (mapping == MAP_FAILED) {
    throw unreadable("map", path_, errno);
  }
  data_ = static_cast<const std::byte*>(mapping);
  size_ = size;
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : path_(std::move(other.path_)), data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(path_, other.path_);
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) {
    ::munmap(const_cast<std::byte*>(data_), size_);
  }
}

std::string read_text_file(const std::filesystem::path& path, std::size_t most) {
  const MappedFile file(path);
  const std::string_view text = file.text();
  if (text.size() > most) {
    throw Error(ErrorCode::data, fmt::format("cannot read '{}': it has {} bytes, expected at most {}", path.native(),
                                             text.size(), most));
  }
  const std::size_t nul = text.find('\0');
  if (const auto invalid = first_invalid_utf8(text); invalid || nul != std::string_view::npos) {
    throw Error(ErrorCode::data, fmt::format("cannot read '{}': it is no UTF-8 text, as byte {} shows", path.native(),
                                             std::min(invalid.value_or(nul), nul)));
  }
  return std::string(text);
}

}  // namespace shardrun::files
