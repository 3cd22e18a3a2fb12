#include "core/files/trust.h"

#include <fmt/format.h>
#include <grp.h>
#include <pwd.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/base/text.h"
#include "core/files/folder.h"

namespace shardrun::files {
namespace {

/// The role of a path in a check: the file or directory to check, or a directory above it.
enum class Checked { itself, ancestor };

[[noreturn]] void distrust(const std::filesystem::path& path, const std::string& why) {
  throw Error(ErrorCode::plugin, fmt::format("{} is not trusted: {}", printable(path.string()), why));
}

struct stat status_of(const std::filesystem::path& path) {
  struct stat status {};
  if (::stat(path.c_str(), &status) != 0) {
    throw Error(ErrorCode::plugin,
                fmt::format("cannot look at {}: {}", printable(path.string()), std::strerror(errno)));
  }
  return status;
}

/// Users who may change files that this program loads: this user, root, and the owner of the executable.
std::array<uid_t, 3> trusted_users() { return {::geteuid(), 0, status_of("/proc/self/exe").st_uid}; }

bool is_trusted_user(uid_t user) {
  const std::array<uid_t, 3> trusted = trusted_users();
  return std::find(trusted.begin(), trusted.end(), user) != trusted.end();
}

/// Whether a user is outside of this user namespace. All such users have the same overflow number here.
bool is_outside_of_namespace(uid_t user) {
  std::ifstream map("/proc/self/uid_map");
  std::uint64_t first = 0;
  std::uint64_t outside = 0;
  std::uint64_t count = 0;
  bool is_read = false;
  while (map >> first >> outside >> count) {
    is_read = true;
    if (user >= first && user - first < count) {
      return false;
    }
  }
  return is_read;
}

/// Whether all members of the group are trusted users, according to the databases of users and groups.
bool is_trusted_group(gid_t group) {
  if (group == 0) {
    return true;
  }
  constexpr std::size_t longest_entry = std::size_t{16} << 20U;
  std::vector<char> group_text(std::size_t{64} << 10U);
  std::vector<char> text(std::size_t{64} << 10U);
  ::group entry{};
  ::group* found_entry = nullptr;
  int unread = ERANGE;
  for (; unread == ERANGE && group_text.size() <= longest_entry; group_text.resize(4 * group_text.size())) {
    unread = ::getgrgid_r(group, &entry, group_text.data(), group_text.size(), &found_entry);
    if (unread != ERANGE) {
      break;  // the entry is in this memory
    }
  }
  if (unread != 0 && unread != ENOENT && unread != ESRCH) {  // these two also say that there is no such group
    return false;
  }
  const bool is_known = found_entry != nullptr;
  if (!is_known && group != ::getegid()) {
    return false;  // the group has no name, so its members are unknown
  }
  passwd each{};
  passwd* found = nullptr;
  for (char** member = is_known ? entry.gr_mem : nullptr; member != nullptr && *member != nullptr; ++member) {
    if (::getpwnam_r(*member, &each, text.data(), text.size(), &found) != 0 || found == nullptr ||
        !is_trusted_user(each.pw_uid)) {
      return false;
    }
  }
  bool is_trusted = true;
  int failed = 0;
  ::setpwent();
  while (is_trusted && (failed = ::getpwent_r(&each, text.data(), text.size(), &found)) == 0) {
    is_trusted = each.pw_gid != group || is_trusted_user(each.pw_uid);
  }
  ::endpwent();
  return is_trusted && failed == ENOENT;  // otherwise some users were not read
}

constexpr const char* access_list = "system.posix_acl_access";

/// Whether the path has an access control list. If so, the group bits of its mode are only an upper limit for the
/// list's entries.
bool has_access_list(const std::filesystem::path& path) {
  return ::getxattr(path.c_str(), access_list, nullptr, 0) > 0;
}

/// Whether the access control list gives write access only to trusted users and groups.
bool is_trusted_access_list(const std::filesystem::path& path, gid_t group) {
  struct Entry {
    std::uint16_t tag;
    std::uint16_t rights;
    std::uint32_t id;
  };
  enum Tag : std::uint16_t {
    owner = 0x01,
    user = 0x02,
    owning_group = 0x04,
    named_group = 0x08,
    mask = 0x10,
    other = 0x20
  };
  constexpr std::size_t header = 4;
  constexpr unsigned write = 2;
  std::vector<char> bytes(std::size_t{64} * 1024);
  const ssize_t size = ::getxattr(path.c_str(), access_list, bytes.data(), bytes.size());
  if (size < static_cast<ssize_t>(header)) {
    return false;
  }
  for (std::size_t at = header; at + sizeof(Entry) <= static_cast<std::size_t>(size); at += sizeof(Entry)) {
    Entry entry{};
    std::memcpy(&entry, bytes.data() + at, sizeof(entry));
    if ((entry.rights & write) == 0) {
      continue;
    }
    const bool is_trusted = entry.tag == user           ? is_trusted_user(entry.id)
                            : entry.tag == named_group  ? is_trusted_group(entry.id)
                            : entry.tag == owning_group ? is_trusted_group(group)
                                                        : entry.tag == owner || entry.tag == mask || entry.tag == other;
    if (!is_trusted) {
      return false;
    }
  }
  return true;
}

void require_safe(const std::filesystem::path& path, const struct stat& status, Checked checked) {
  const bool is_kept_apart = checked == Checked::ancestor && (status.st_mode & S_ISVTX) != 0;
  const unsigned mode = status.st_mode & 07777U;
  if ((status.st_mode & S_IWOTH) != 0 && !is_kept_apart) {
    distrust(path, fmt::format("everyone may write to it (mode {:04o}); take that right away with chmod o-w", mode));
  }
  if ((status.st_mode & S_IWGRP) != 0 && !is_kept_apart) {
    if (has_access_list(path)) {
      if (!is_trusted_access_list(path, status.st_gid)) {
        distrust(path,
                 "its access control list (getfacl) lets others write to it; take that right away with "
                 "setfacl -b, and chmod g-w");
      }
    } else if (!is_trusted_group(status.st_gid)) {
      distrust(path,
               fmt::format("group {} may write to it (mode {:04o}), and it has members other than the user, or is "
                           "in no list of groups; take that right away with chmod g-w",
                           status.st_gid, mode));
    }
  }
  const uid_t owner = status.st_uid;
  if (!is_trusted_user(owner) && !(checked == Checked::ancestor && is_outside_of_namespace(owner))) {
    distrust(path, fmt::format("it belongs to user {}, which is neither the user who runs this ({}), nor root, nor the "
                               "owner of the program",
                               owner, ::geteuid()));
  }
}

void require_safe_above(const std::filesystem::path& directory) {
  for (std::filesystem::path above = directory; above.has_relative_path();) {
    above = above.parent_path();
    require_safe(above, status_of(above), Checked::ancestor);
  }
}

}  // namespace

void require_trusted_directory(const std::filesystem::path& directory) {
  require_safe(directory, status_of(directory), Checked::itself);
  require_safe_above(std::filesystem::absolute(directory).lexically_normal());
  require_safe_above(std::filesystem::canonical(directory));
}

void require_trusted_search(const std::filesystem::path& directory) {
  std::filesystem::path existing = directory;
  std::error_code failed;
  const auto is_there = [&] {
    return std::filesystem::symlink_status(existing, failed).type() != std::filesystem::file_type::not_found;
  };
  while (existing.has_relative_path() && !is_there()) {
    existing = existing.parent_path();
  }
  if (std::filesystem::is_symlink(existing, failed) && !std::filesystem::exists(existing, failed)) {
    distrust(existing, "it is a link that leads nowhere, and others may be able to create what it leads to");
  }
  require_trusted_directory(existing);
}

void require_no_links_of_others(const std::filesystem::path& folder) {
  std::error_code failed;
  std::filesystem::recursive_directory_iterator entries(
      folder, std::filesystem::directory_options::skip_permission_denied, failed);
  for (; !failed && entries != std::filesystem::recursive_directory_iterator(); entries.increment(failed)) {
    if (entries.depth() == 1) {
      entries.disable_recursion_pending();
    }
    struct stat status = {};
    if (::lstat(entries->path().c_str(), &status) == 0 && S_ISLNK(status.st_mode) && status.st_uid != ::geteuid() &&
        status.st_uid != 0) {
      throw Error(
          ErrorCode::data,
          fmt::format("'{}' is a link that another user (uid {}) has put there, and what is written would follow it: "
                      "remove it, or choose another folder",
                      printable(shown(entries->path()).string()), status.st_uid));
    }
  }
  if (failed && failed != std::errc::no_such_file_or_directory) {
    throw unreadable("look for links in", folder, failed.value());
  }
}

void require_trusted(const std::filesystem::path& file) {
  const struct stat status = status_of(file);
  if (!S_ISREG(status.st_mode)) {
    throw Error(ErrorCode::plugin, fmt::format("{} is not a regular file", printable(file.string())));
  }
  require_safe(file, status, Checked::itself);
  require_trusted_directory(file.parent_path());
  require_trusted_directory(std::filesystem::canonical(file).parent_path());
}

}  // namespace shardrun::files
