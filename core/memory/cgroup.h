#pragma once

#include <filesystem>
#include <vector>

#include "core/memory/machine.h"

namespace shardrun::memory {

enum class CgroupLimit {
  hard,     ///< memory.max; memory.limit_in_bytes of version 1
  slowing,  ///< memory.high, which version 1 has not
};

/// What each control group leaves that this process is in, from its own up to the highest that can be seen from here:
/// of both versions, and of those alone that have a limit. `root`: of the files that are read.
[[nodiscard]] std::vector<MemoryRoom> cgroup_rooms(const std::filesystem::path& root, CgroupLimit kind);

}  // namespace shardrun::memory
