#include "core/memory/machine.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <string_view>
#include <vector>

#include "core/memory/cgroup.h"

namespace shardrun::memory {
namespace {

/// Bytes that a file of /proc gives in kilobytes behind a word.
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
