#include "core/files/atomic_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "core/base/error.h"
#include "core/files/folder.h"

namespace shardrun::files {
namespace {

std::filesystem::path temporary_name(const std::filesystem::path& path) {
  if (!path.has_filename()) {
    throw Error(ErrorCode::io, fmt::format("cannot write '{}': it names a folder, not a file", path.native()));
  }
  return path.parent_path() / fmt::format(".{}.tmp", path.filename().native());
}

std::filesystem::path folder_of(const std::filesystem::path& path) {
  return path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
}

/// Whether `path` still names the open file. The previous writer could have renamed or removed it before we locked it.
bool names(const std::filesystem::path& path, const FileDescriptor& file) {
  struct stat held = {};
  struct stat named = {};
  return ::fstat(file.get(), &held) == 0 && ::lstat(path.c_str(), &named) == 0 && held.st_ino == named.st_ino &&
         held.st_dev == named.st_dev;
}

bool has_other_names(const FileDescriptor& file) {
  struct stat held = {};
  return ::fstat(file.get(), &held) == 0 && held.st_nlink > 1;
}

/// Creates and locks the temporary file, or takes over one that a dead writer has left. The lock says whether a writer
/// is alive; the file's existence does not.
FileDescriptor claim(const std::filesystem::path& temporary, const std::filesystem::path& path) {
  for (;;) {
    FileDescriptor file(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666));
    if (!file.is_open()) {
      throw system_error("create", temporary, errno);
    }
    if (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno == EWOULDBLOCK) {
        throw Error(ErrorCode::io, fmt::format("cannot write '{}': another process is writing it now (it holds '{}')",
                                               shown(path).native(), shown(temporary).native()));
      }
      throw system_error("lock", temporary, errno);
    }
    if (has_other_names(file)) {  // the file is hard-linked, so writing to it would change another file
      ::unlink(temporary.c_str());
    } else if (names(temporary, file)) {
      if (::ftruncate(file.get(), 0) != 0) {
        throw system_error("empty", temporary, errno);
      }
      return file;
    }
  }
}

void seek(const FileDescriptor& file, std::uint64_t offset, const std::filesystem::path& path) {
  if (::lseek(file.get(), static_cast<off_t>(offset), SEEK_SET) < 0) {
    throw system_error(fmt::format("write at byte {} of", offset), path, errno);
  }
}

void make_durable(const FileDescriptor& file, const std::filesystem::path& path) {
  if (::fsync(file.get()) != 0) {
    throw system_error("make durable", path, errno);
  }
}

}  // namespace

AtomicFile::AtomicFile(std::filesystem::path path)
    : path_(std::move(path)), temporary_(temporary_name(path_)), file_(claim(temporary_, path_)) {}

AtomicFile::~AtomicFile() {
  if (file_.is_open()) {
    ::unlink(temporary_.c_str());
  }
}

void AtomicFile::write(std::span<const std::byte> bytes) {
  const off_t begin = ::lseek(file_.get(), 0, SEEK_CUR);
  try {
    write_all(file_, bytes, path_);
  } catch (const Error&) {
    static_cast<void>(::ftruncate(file_.get(), begin) == 0 && ::lseek(file_.get(), begin, SEEK_SET) == begin);
    throw;
  }
}

void AtomicFile::reserve(std::uint64_t bytes) {
  const auto size = static_cast<off_t>(bytes);
  bool is_taken = bytes == 0;
  do {
    is_taken = is_taken || ::fallocate(file_.get(), 0, 0, size) == 0;
  } while (!is_taken && errno == EINTR);
  // Some file systems cannot reserve space. There, only the file's size is set.
  if (!is_taken && (errno != EOPNOTSUPP || ::ftruncate(file_.get(), size) != 0)) {
    throw system_error(fmt::format("make room for the {} bytes of", bytes), path_, errno);
  }
}

void AtomicFile::write_at(std::uint64_t offset, std::span<const std::byte> bytes) {
  seek(file_, offset, path_);
  write_all(file_, bytes, path_);
}

void AtomicFile::cut(std::uint64_t bytes) {
  if (::ftruncate(file_.get(), static_cast<off_t>(bytes)) != 0) {
    throw system_error("cut", path_, errno);
  }
}

void AtomicFile::commit() {
  make_durable(file_, path_);
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) {
    throw system_error("replace", path_, errno);
  }
  file_ = FileDescriptor();
  sync_folder(folder_of(path_));
}

UnfinishedFile::UnfinishedFile(std::filesystem::path path, std::uint64_t bytes) : path_(std::move(path)) {
  const std::filesystem::path temporary = temporary_name(path_);
  // Opens for writing only. On a network file system, two machines then never write back cached pages of each other.
  file_ = FileDescriptor(::open(temporary.c_str(), O_WRONLY | O_CLOEXEC | O_NOFOLLOW));
  struct stat status = {};
  if (!file_.is_open() || ::fstat(file_.get(), &status) != 0) {
    throw system_error("open", temporary, errno);
  }
  if (static_cast<std::uint64_t>(status.st_size) != bytes) {
    throw Error(ErrorCode::internal, fmt::format("'{}' has {} bytes, and this process would write {}",
                                                 shown(temporary).native(), status.st_size, bytes));
  }
}

void UnfinishedFile::write_at(std::uint64_t offset, std::span<const std::byte> bytes) {
  seek(file_, offset, path_);
  write_all(file_, bytes, path_);
}

void UnfinishedFile::sync() { make_durable(file_, path_); }

void require_not_read(const std::filesystem::path& target, std::span<const std::filesystem::path> read) {
  for (const std::filesystem::path& file : read) {
    std::error_code none;
    if (std::filesystem::equivalent(target, file, none)) {
      throw Error(
          ErrorCode::usage,
          fmt::format("cannot write '{}': it is '{}', which is read for it and would be lost: choose another name",
                      target.native(), file.native()));
    }
  }
}

void write_file_atomically(const std::filesystem::path& path, std::string_view text) {
  AtomicFile file(path);
  file.write(std::as_bytes(std::span(text)));
  file.commit();
}

}  // namespace shardrun::files
