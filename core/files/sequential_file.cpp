#include "core/files/sequential_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "core/base/error.h"
#include "core/files/folder.h"

namespace shardrun::files {

struct SequentialFile::Block {
  alignas(alignment) std::array<std::byte, std::size_t{4} << 20U> bytes;
};

SequentialFile::SequentialFile(std::filesystem::path path, std::uint64_t bytes)
    : path_(std::move(path)), bytes_(bytes), block_(std::make_unique_for_overwrite<Block>()) {
  constexpr int flags = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW;
  file_ = FileDescriptor(::open(path_.c_str(), flags | O_DIRECT, 0666));
  if (!file_.is_open() && errno == EINVAL) {  // the file system has no direct writes
    direct_ = false;
    ::unlink(path_.c_str());  // some file systems create the file although they return EINVAL
    file_ = FileDescriptor(::open(path_.c_str(), flags, 0666));
  }
  if (!file_.is_open()) {
    throw system_error("create", path_, errno);
  }
  int failed = 0;
  do {
    failed = bytes == 0 || ::fallocate(file_.get(), 0, 0, static_cast<off_t>(bytes)) == 0 ? 0 : errno;
  } while (failed == EINTR);
  if (failed != 0 && failed != EOPNOTSUPP && failed != ENOSYS) {
    throw system_error(fmt::format("make room for the {} bytes of", bytes), path_, failed);
  }
}

SequentialFile::~SequentialFile() = default;

void SequentialFile::write(std::span<const std::byte> bytes) {
  hasher_.add(bytes);
  length_ += bytes.size();
  while (!bytes.empty()) {
    const std::size_t whole = bytes.size() - bytes.size() % alignment;
    if (filled_ == 0 && whole > 0 && reinterpret_cast<std::uintptr_t>(bytes.data()) % alignment == 0) {
      put(bytes.first(whole));
      bytes = bytes.subspan(whole);
      continue;
    }
    const std::size_t count = std::min(bytes.size(), block_->bytes.size() - filled_);
    std::memcpy(block_->bytes.data() + filled_, bytes.data(), count);
    filled_ += count;
    bytes = bytes.subspan(count);
    if (filled_ == block_->bytes.size()) {
      flush();
    }
  }
}

/// Writes bytes at the descriptor's position.
void SequentialFile::put(std::span<const std::byte> bytes) {
  while (direct_ && !bytes.empty()) {
    const ssize_t written = ::write(file_.get(), bytes.data(), bytes.size());
    if (written >= 0 && static_cast<std::size_t>(written) % alignment == 0) {
      bytes = bytes.subspan(static_cast<std::size_t>(written));
    } else if (written >= 0) {  // a short write, for example on a full disk; the next write reports the reason
      bytes = bytes.subspan(static_cast<std::size_t>(written));
      stop_direct();
    } else if (errno == EINVAL) {
      stop_direct();
    } else if (errno != EINTR) {
      throw system_error("write", path_, errno);
    }
  }
  write_all(file_, bytes, path_);
}

/// Writes the buffered block. Direct writes need whole pages, so the rest after the last page is written without them.
void SequentialFile::flush() {
  const std::span<const std::byte> filled = std::span(block_->bytes).first(std::exchange(filled_, 0));
  const std::size_t whole = filled.size() - filled.size() % alignment;
  put(filled.first(whole));
  if (whole != filled.size()) {
    stop_direct();
    put(filled.subspan(whole));
  }
}

void SequentialFile::stop_direct() {
  if (direct_ && ::fcntl(file_.get(), F_SETFL, 0) != 0) {
    throw system_error("write", path_, errno);
  }
  direct_ = false;
}

Hash SequentialFile::finish() {
  if (length_ != bytes_) {
    throw Error(ErrorCode::internal, fmt::format("'{}' got {} bytes of {}", shown(path_).native(), length_, bytes_));
  }
  flush();
  if (::fsync(file_.get()) != 0) {
    throw system_error("make durable", path_, errno);
  }
  return hasher_.hash();
}

}  // namespace shardrun::files
