#include "core/files/atomic_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "core/base/error.h"

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

/// Whether `path` still names the open file: its last owner may have renamed or removed it before we held the lock.
bool names(const std::filesystem::path& path, const FileDescriptor& file) {
  struct stat held = {};
  struct stat named = {};
  return ::fstat(file.get(), &held) == 0 && ::lstat(path.c_str(), &named) == 0 && held.st_ino == named.st_ino &&
         held.st_dev == named.st_dev;
}

/// Creates the temporary file, or takes over a dead writer's: the lock, not the file's existence, says who writes.
FileDescriptor claim(const std::filesystem::path& temporary, const std::filesystem::path& path) {
  for (;;) {
    FileDescriptor file(::open(temporary.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666));
    if (!file.is_open()) {
      throw system_error("create", temporary, errno);
    }
    if (::flock(file.get(), LOCK_EX | LOCK_NB) != 0) {
      if (errno == EWOULDBLOCK) {
        throw Error(ErrorCode::io, fmt::format("cannot write '{}': another process is writing it now (it holds '{}')",
                                               path.native(), temporary.native()));
      }
      throw system_error("lock", temporary, errno);
    }
    if (names(temporary, file)) {
      if (::ftruncate(file.get(), 0) != 0) {
        throw system_error("empty", temporary, errno);
      }
      return file;
    }
  }
}

/// A rename is durable once its folder is. Some file systems cannot do that to a folder and say EINVAL.
void sync_folder(const std::filesystem::path& folder) {
  const FileDescriptor opened(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!opened.is_open() || (::fsync(opened.get()) != 0 && errno != EINVAL)) {
    throw system_error("make durable the folder", folder, errno);
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

void AtomicFile::write(std::span<const std::byte> bytes) { write_all(file_, bytes, path_); }

void AtomicFile::write_at(std::uint64_t offset, std::span<const std::byte> bytes) {
  if (::lseek(file_.get(), static_cast<off_t>(offset), SEEK_SET) < 0) {
    throw system_error(fmt::format("write at byte {} of", offset), path_, errno);
  }
  write_all(file_, bytes, path_);
}

void AtomicFile::commit() {
  if (::fsync(file_.get()) != 0) {
    throw system_error("make durable", path_, errno);
  }
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) {
    throw system_error("replace", path_, errno);
  }
  file_ = FileDescriptor();
  sync_folder(folder_of(path_));
}

void write_file_atomically(const std::filesystem::path& path, std::string_view text) {
  AtomicFile file(path);
  file.write(std::as_bytes(std::span(text)));
  file.commit();
}

}  // namespace shardrun::files
