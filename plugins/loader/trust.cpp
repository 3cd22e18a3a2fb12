#include "plugins/loader/trust.h"

#include <fmt/format.h>
#include <grp.h>
#include <pwd.h>
#include <sys/stat.h>
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
#include "core/base/printable.h"

namespace shardrun::plugins {
namespace {

/// What a path is to the file that is loaded.
enum class Place { itself, above };

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

/// Users whose files are as good as the user's own.
std::array<uid_t, 3> trusted_users() { return {::geteuid(), 0, status_of("/proc/self/exe").st_uid}; }

bool is_trusted_user(uid_t user) {
  const std::array<uid_t, 3> trusted = trusted_users();
  return std::find(trusted.begin(), trusted.end(), user) != trusted.end();
}

/// In a user namespace the owner of what belongs to users outside of it cannot be told: all have the overflow number.
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

/// The user's primary group, named as the user, that nobody else is in.
bool is_private_group(gid_t group, uid_t user) {
  std::vector<char> user_text(std::size_t{64} * 1024);
  std::vector<char> group_text(std::size_t{64} * 1024);
  passwd owner{};
  passwd* found_owner = nullptr;
  ::group members{};
  ::group* found_members = nullptr;
  if (::getpwuid_r(user, &owner, user_text.data(), user_text.size(), &found_owner) != 0 || found_owner == nullptr ||
      ::getgrgid_r(group, &members, group_text.data(), group_text.size(), &found_members) != 0 ||
      found_members == nullptr || owner.pw_gid != group || std::strcmp(owner.pw_name, members.gr_name) != 0) {
    return false;
  }
  for (char** member = members.gr_mem; *member != nullptr; ++member) {
    if (std::strcmp(*member, owner.pw_name) != 0) {
      return false;
    }
  }
  bool is_shared = false;
  ::setpwent();
  std::vector<char> text(std::size_t{64} * 1024);
  passwd each{};
  passwd* found = nullptr;
  while (!is_shared && ::getpwent_r(&each, text.data(), text.size(), &found) == 0) {
    is_shared = each.pw_gid == group && each.pw_uid != user;
  }
  ::endpwent();
  return !is_shared;
}

bool is_trusted_group(gid_t group) {
  if (group == 0) {
    return true;
  }
  const std::array<uid_t, 3> users = trusted_users();
  return std::any_of(users.begin(), users.end(), [&](uid_t user) { return is_private_group(group, user); });
}

void require_safe(const std::filesystem::path& path, const struct stat& status, Place place) {
  const bool is_kept_apart = place == Place::above && (status.st_mode & S_ISVTX) != 0;
  const unsigned mode = status.st_mode & 07777U;
  if ((status.st_mode & S_IWOTH) != 0 && !is_kept_apart) {
    distrust(path, fmt::format("everyone may write to it (mode {:04o}); take that right away with chmod o-w", mode));
  }
  if ((status.st_mode & S_IWGRP) != 0 && !is_kept_apart && !is_trusted_group(status.st_gid)) {
    distrust(path, fmt::format("group {} may write to it (mode {:04o}), which is neither root's nor a group of the "
                               "user alone; take that right away with chmod g-w",
                               status.st_gid, mode));
  }
  const uid_t owner = status.st_uid;
  if (!is_trusted_user(owner) && !(place == Place::above && is_outside_of_namespace(owner))) {
    distrust(path, fmt::format("it belongs to user {}, which is neither the user who runs this ({}), nor root, nor the "
                               "owner of the program",
                               owner, ::geteuid()));
  }
}

void require_safe_above(const std::filesystem::path& directory) {
  for (std::filesystem::path above = directory; above.has_relative_path();) {
    above = above.parent_path();
    require_safe(above, status_of(above), Place::above);
  }
}

}  // namespace

void require_trusted_directory(const std::filesystem::path& directory) {
  require_safe(directory, status_of(directory), Place::itself);
  require_safe_above(std::filesystem::absolute(directory).lexically_normal());
  require_safe_above(std::filesystem::canonical(directory));
}

void require_trusted_search(const std::filesystem::path& directory) {
  std::filesystem::path existing = directory;
  std::error_code failed;
  while (existing.has_relative_path() && !std::filesystem::exists(existing, failed) && !failed) {
    existing = existing.parent_path();
  }
  require_trusted_directory(existing);
}

void require_trusted(const std::filesystem::path& file) {
  const struct stat status = status_of(file);
  if (!S_ISREG(status.st_mode)) {
    throw Error(ErrorCode::plugin, fmt::format("{} is not a regular file", printable(file.string())));
  }
  require_safe(file, status, Place::itself);
  require_trusted_directory(file.parent_path());
  require_trusted_directory(std::filesystem::canonical(file).parent_path());
}

}  // namespace shardrun::plugins
