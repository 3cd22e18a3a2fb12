#pragma once

#include <filesystem>
#include <vector>

#include "core/memory/machine.h"

namespace shardrun::memory {

enum class CgroupLimit {
  hard,     ///< memory.max; memory.limit_in_bytes of version 1
  slowing,  ///< memory.high; does not exist in version 1
};

/// The memory that each control group of this process leaves, from its own group up to the highest visible one. Covers
/// both versions of control groups. Groups without a limit are left out. `root`: the folder that stands for "/".
[[nodiscard]] std::vector<MemoryRoom> cgroup_rooms(const std::filesystem::path& root, CgroupLimit kind);

}  // namespace shardrun::memory
