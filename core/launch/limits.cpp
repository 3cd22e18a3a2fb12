#include "core/launch/limits.h"

#include <sys/resource.h>

#include <algorithm>

namespace shardrun::launch {

std::uint64_t raise_descriptor_limit(std::uint64_t needed) {
  rlimit limit = {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= needed) {
    return 0;
  }
  const rlim_t before = limit.rlim_cur;
  limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, needed);
  const bool raised = ::setrlimit(RLIMIT_NOFILE, &limit) == 0;
  return raised && limit.rlim_cur == needed ? 0 : std::max(before, limit.rlim_cur);
}

}  // namespace shardrun::launch
