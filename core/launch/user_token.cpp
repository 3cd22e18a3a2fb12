#include "core/launch/world.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <span>
#include <string>

#include "core/base/error.h"
#include "core/files/descriptor.h"

namespace shardrun::launch {
namespace {

namespace fs = std::filesystem;

constexpr const char* token_name = "token";

fs::path folder_of(const Variables& variable) {
  const char* const given = variable("TMPDIR");
  const bool is_absolute = given != nullptr && *given == '/';
  return fs::path(is_absolute ? given : "/tmp") / fmt::format("shardrun-{}", ::geteuid());
}

/// Throws Error{usage} if another user could read or change the token.
void require_own(const files::FileDescriptor& opened, const fs::path& path) {
  struct stat status = {};
  if (::fstat(opened.get(), &status) != 0) {
    throw files::system_error("look at", path, errno);
  }
  if (status.st_uid != ::geteuid() || (status.st_mode & 077U) != 0) {
    throw Error(
        ErrorCode::usage,
        fmt::format("'{}' has the secret of ranks that have no SHARDRUN_TOKEN, but belongs to user {} with mode "
                    "{:04o}, expected user {} and nobody else: remove it, or set SHARDRUN_TOKEN for all ranks "
                    "('openssl rand -hex 32' makes one)",
                    path.string(), status.st_uid, status.st_mode & 07777U, ::geteuid()));
  }
}

files::FileDescriptor open_folder(const fs::path& path) {
  if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
    throw Error(ErrorCode::usage, files::system_error("make", path, errno).message() +
                                      "; it is for the secret of ranks that have no SHARDRUN_TOKEN: set that, or let "
                                      "TMPDIR name a folder that may be written to");
  }
  files::FileDescriptor folder(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!folder.is_open()) {
    throw files::system_error("open", path, errno);
  }
  require_own(folder, path);
  return folder;
}

files::FileDescriptor open_token(const files::FileDescriptor& folder) {
  return files::FileDescriptor(::openat(folder.get(), token_name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC));
}

/// Creates the token. Writes it under another name first, so that no process reads it half-written. If two processes
/// create it, the first one's token stays.
void make_token(const files::FileDescriptor& folder, const fs::path& path) {
  const Token token = random_token();
  const Token name = random_token();
  const std::string draft = fmt::format("draft-{:02x}{:02x}{:02x}{:02x}{:02x}{:02x}{:02x}{:02x}", name[0], name[1],
                                        name[2], name[3], name[4], name[5], name[6], name[7]);
  try {
    const files::FileDescriptor file(
        ::openat(folder.get(), draft.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
    if (!file.is_open()) {
      throw files::system_error("make", path, errno);
    }
    files::write_all(file, std::as_bytes(std::span(token)), path);
  } catch (...) {
    ::unlinkat(folder.get(), draft.c_str(), 0);
    throw;
  }
  const bool linked = ::linkat(folder.get(), draft.c_str(), folder.get(), token_name, 0) == 0 || errno == EEXIST;
  const int failed = errno;
  ::unlinkat(folder.get(), draft.c_str(), 0);
  if (!linked) {
    throw files::system_error("make", path, failed);
  }
}

}  // namespace

Token token_of_this_user(const Variables& variable) {
  const fs::path path = folder_of(variable) / token_name;
  const files::FileDescriptor folder = open_folder(path.parent_path());
  files::FileDescriptor file = open_token(folder);
  if (!file.is_open() && errno == ENOENT) {
    make_token(folder, path);
    file = open_token(folder);
  }
  if (!file.is_open()) {
    throw files::system_error("open", path, errno);
  }
  require_own(file, path);
  std::array<char, 64> bytes = {};
  const ssize_t size = ::read(file.get(), bytes.data(), bytes.size());
  Token token = {};
  if (size != static_cast<ssize_t>(token.size())) {
    throw Error(ErrorCode::io, fmt::format("'{}' has {} bytes, expected a secret of {}: remove it", path.string(),
                                           std::max<ssize_t>(size, 0), token.size()));
  }
  std::copy_n(bytes.begin(), token.size(), token.begin());
  return token;
}

}  // namespace shardrun::launch
