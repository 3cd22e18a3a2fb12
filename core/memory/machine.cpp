#include "core/memory/machine.h"

#include <algorithm>
#include <fstream>
#include <string>

namespace shardrun::memory {
namespace {

/// A file that holds one number; 0 where it is not there or says "max".
std::uint64_t number_in(const char* path) {
  std::ifstream file(path);
  std::uint64_t value = 0;
  return file >> value ? value : 0;
}

std::uint64_t kernel_available() {
  std::ifstream file("/proc/meminfo");
  std::string word;
  while (file >> word) {
    if (word == "MemAvailable:") {
      std::uint64_t kilobytes = 0;
      return file >> kilobytes ? kilobytes * 1024 : 0;
    }
  }
  return 0;
}

}  // namespace

std::uint64_t available_bytes() {
  const std::uint64_t kernel = kernel_available();
  const std::uint64_t limit = number_in("/sys/fs/cgroup/memory.max");
  const std::uint64_t used = number_in("/sys/fs/cgroup/memory.current");
  return limit == 0 ? kernel : std::min(kernel, limit - std::min(limit, used));
}

}  // namespace shardrun::memory
