#include "plugins/loader/trust.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "core/base/error.h"

namespace shardrun::plugins {
namespace {

struct stat status_of(const std::filesystem::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) {
    throw Error(ErrorCode::plugin, fmt::format("cannot look at {}: {}", path.string(), std::strerror(errno)));
  }
  return status;
}

void require_safe(const std::filesystem::path& path, const struct stat& status) {
  if ((status.st_mode & S_IWOTH) != 0) {
    throw Error(ErrorCode::plugin, fmt::format("{} is not trusted: everyone may write to it (mode {:04o}); take that "
                                               "right away with chmod o-w",
                                               path.string(), status.st_mode & 07777U));
  }
  const uid_t owner = status.st_uid;
  if (owner != ::geteuid() && owner != 0 && owner != status_of("/proc/self/exe").st_uid) {
    throw Error(ErrorCode::plugin, fmt::format("{} is not trusted: it belongs to user {}, which is neither the user "
                                               "who runs this ({}), nor root, nor the owner of the program",
                                               path.string(), owner, ::geteuid()));
  }
}

}  // namespace

void require_trusted_directory(const std::filesystem::path& directory) {
  require_safe(directory, status_of(directory));
}

void require_trusted(const std::filesystem::path& file) {
  const struct stat status = status_of(file);
  if (!S_ISREG(status.st_mode)) {
    throw Error(ErrorCode::plugin, fmt::format("{} is not a regular file", file.string()));
  }
  require_safe(file, status);
  require_trusted_directory(file.parent_path());
  require_trusted_directory(std::filesystem::canonical(file).parent_path());
}

}  // namespace shardrun::plugins
