#include "core/memory/machine.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string_view>
#include <vector>

namespace shardrun::memory {
namespace {

// Formats: see cgroups(7), proc(5), and Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/memory.rst of Linux.

enum class CgroupLimit {
  hard,     ///< memory.max; memory.limit_in_bytes of version 1
  slowing,  ///< memory.high; does not exist in version 1
};

/// The files of a control group, by version.
struct Files {
  const char* limit;
  const char* usage;
  /// Keys of memory.stat for inactive and active file caches, which the kernel can drop. Both include the groups below.
  const char* inactive;
  const char* active;
};

constexpr Files version_1 = {"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file",
                             "total_active_file"};
constexpr Files version_2 = {"memory.max", "memory.current", "inactive_file", "active_file"};
constexpr Files version_2_slowing = {"memory.high", "memory.current", "inactive_file", "active_file"};

/// Limits of at least this mean "no limit". For it, version 1 writes the largest multiple of a page.
constexpr std::uint64_t least_unlimited = std::uint64_t{1} << 62U;

std::optional<std::uint64_t> number_in(const std::filesystem::path& path) {
  std::ifstream file(path);
  std::uint64_t value = 0;
  return file >> value ? std::optional(value) : std::nullopt;
}

std::uint64_t droppable(const std::filesystem::path& group, const Files& files) {
  std::ifstream file(group / "memory.stat");
  std::uint64_t sum = 0;
  std::string key;
  for (std::uint64_t value = 0; file >> key >> value;) {
    sum += key == files.inactive || key == files.active ? value : 0;
  }
  return sum;
}

/// A mounted hierarchy of control groups: its root group, and the path where it is mounted.
struct Mount {
  std::string group;
  std::string point;
};

/// Replaces octal escapes, such as \040 for a space in a path.
std::string unescaped(const std::string& text) {
  std::string plain;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (text[i] == '\\' && i + 3 < text.size()) {
      plain += static_cast<char>(std::strtol(text.substr(i + 1, 3).c_str(), nullptr, 8));
      i += 3;
    } else {
      plain += text[i];
    }
  }
  return plain;
}

/// Whether the comma-separated list has the word.
bool has_word(const std::string& list, std::string_view wanted) {
  std::istringstream words(list);
  for (std::string word; std::getline(words, word, ',');) {
    if (word == wanted) {
      return true;
    }
  }
  return false;
}

/// The mounts of version 2, or those of version 1 with the memory controller.
std::vector<Mount> mounts_of(const std::filesystem::path& root, bool is_version_2) {
  std::vector<Mount> mounts;
  std::ifstream file(root / "proc/self/mountinfo");
  for (std::string line; std::getline(file, line);) {
    // The format is "31 23 0:28 GROUP POINT options optional... - TYPE source super-options".
    std::istringstream words(line);
    const std::vector<std::string> fields{std::istream_iterator<std::string>(words), {}};
    const auto dash = std::find(fields.begin(), fields.end(), "-");
    if (fields.size() < 6 || fields.end() - dash < 4) {
      continue;
    }
    if (is_version_2 ? dash[1] == "cgroup2" : dash[1] == "cgroup" && has_word(dash[3], "memory")) {
      mounts.push_back({unescaped(fields[3]), unescaped(fields[4])});
    }
  }
  return mounts;
}

/// This process's group of version 2, or its group of version 1 with the memory controller; "" if there is none.
std::string own_group(const std::filesystem::path& root, bool is_version_2) {
  std::ifstream file(root / "proc/self/cgroup");
  for (std::string line; std::getline(file, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (second == std::string::npos) {
      continue;
    }
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (is_version_2 ? line.starts_with("0::") : has_word(controllers, "memory")) {
      return line.substr(second + 1);
    }
  }
  return "";
}

/// The path of `group` relative to the group `above`; nothing if `group` is not below it.
std::optional<std::filesystem::path> below(const std::string& group, const std::string& above) {
  const std::filesystem::path relative = std::filesystem::path(group).lexically_relative(above);
  const bool is_outside = relative.empty() || *relative.begin() == ".." || group.find("/..") != std::string::npos;
  return is_outside ? std::nullopt : std::optional(relative);
}

/// Adds the rooms of all groups that have a limit, from `relative` (below the mount point) up to the mount point.
void add_rooms(std::vector<MemoryRoom>& rooms, const std::filesystem::path& root, const Mount& mount,
               std::filesystem::path relative, const Files& files) {
  for (;; relative = relative.parent_path()) {
    const std::filesystem::path inside = relative == "." ? std::filesystem::path() : relative;
    const std::filesystem::path shown = std::filesystem::path(mount.point) / inside;
    const std::filesystem::path group = root / shown.relative_path();
    const std::optional<std::uint64_t> limit = number_in(group / files.limit);
    if (limit && *limit < least_unlimited) {
      const std::uint64_t usage = number_in(group / files.usage).value_or(0);
      const std::uint64_t used = usage - std::min(usage, droppable(group, files));
      rooms.push_back({.bytes = *limit - std::min(*limit, used),
                       .limit = *limit,
                       .name = "the control group of this process (" + (shown / files.limit).string() + ")"});
    }
    if (inside.empty()) {
      return;
    }
  }
}

void add_hierarchy(std::vector<MemoryRoom>& rooms, const std::filesystem::path& root, bool is_version_2,
                   const Files& files) {
  const std::string group = own_group(root, is_version_2);
  const std::vector<Mount> mounts = mounts_of(root, is_version_2);
  if (group.empty() || mounts.empty()) {
    return;
  }
  for (const Mount& mount : mounts) {
    if (const std::optional<std::filesystem::path> relative = below(group, mount.group)) {
      add_rooms(rooms, root, mount, *relative, files);
      return;
    }
  }
  // A namespace hides the process's own group, so only the mounted group can be seen.
  add_rooms(rooms, root, mounts.front(), {}, files);
}

/// The memory that each control group of this process leaves, from its own group up to the highest visible one, for
/// both versions of control groups. Groups without a limit are left out. `root`: the folder with proc/ and sys/.
std::vector<MemoryRoom> cgroup_rooms(const std::filesystem::path& root, CgroupLimit kind) {
  std::vector<MemoryRoom> rooms;
  if (kind == CgroupLimit::slowing) {
    add_hierarchy(rooms, root, true, version_2_slowing);
    return rooms;
  }
  add_hierarchy(rooms, root, true, version_2);
  add_hierarchy(rooms, root, false, version_1);
  return rooms;
}

/// The bytes in a file of /proc that gives kilobytes after the word `wanted`.
std::optional<std::uint64_t> bytes_behind(const std::filesystem::path& path, std::string_view wanted) {
  std::ifstream file(path);
  std::string word;
  while (file >> word) {
    if (word == wanted) {
      std::uint64_t kilobytes = 0;
      return file >> kilobytes ? std::optional(kilobytes * 1024) : std::nullopt;
    }
  }
  return std::nullopt;
}

std::optional<MemoryRoom> least(const std::vector<MemoryRoom>& rooms) {
  const auto found = std::ranges::min_element(rooms, {}, &MemoryRoom::bytes);
  return found == rooms.end() ? std::nullopt : std::optional(*found);
}

}  // namespace

std::optional<MemoryRoom> available_memory(const std::filesystem::path& root) {
  std::vector<MemoryRoom> rooms = cgroup_rooms(root, CgroupLimit::hard);
  if (const std::optional<std::uint64_t> kernel = bytes_behind(root / "proc/meminfo", "MemAvailable:")) {
    rooms.insert(rooms.begin(), MemoryRoom{.bytes = *kernel});
  }
  return least(rooms);
}

std::optional<MemoryRoom> memory_at_full_speed(const std::filesystem::path& root) {
  return least(cgroup_rooms(root, CgroupLimit::slowing));
}

std::uint64_t process_bytes(const std::filesystem::path& root) {
  return bytes_behind(root / "proc/self/status", "RssAnon:").value_or(0) + process_growth;
}

std::optional<MemoryRoom> address_space() {
  rlimit limit = {};
  if (::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
    return std::nullopt;
  }
  std::uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  const std::uint64_t used = pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  return MemoryRoom{.bytes = limit.rlim_cur - std::min<std::uint64_t>(limit.rlim_cur, used),
                    .limit = limit.rlim_cur,
                    .name = "the limit of a process's address space (ulimit -v)"};
}

std::string to_string(const MemoryRoom& room, const std::string& left, const std::string& limit) {
  return room.name.empty() ? "this machine has " + left + " available"
                           : room.name + " leaves " + left + " of its " + limit;
}

}  // namespace shardrun::memory
