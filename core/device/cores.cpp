#include "core/device/cores.h"

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <string>

namespace shardrun::device {
namespace {

std::int64_t cores_of_affinity() {
  cpu_set_t set;
  CPU_ZERO(&set);
  return sched_getaffinity(0, sizeof(set), &set) == 0 ? std::max(1, CPU_COUNT(&set)) : 1;
}

constexpr std::int64_t no_limit = INT64_MAX;

/// Cores for a quota of microseconds per period, rounded up. A quota of 0 or less is no limit.
std::int64_t cores_worth(std::int64_t quota, std::int64_t period) {
  return quota > 0 && period > 0 ? (quota + period - 1) / period : no_limit;
}

/// The limit of one group. Version 2 of control groups has quota and period in one file, where "max" means no limit.
/// Version 1 has a file for each.
std::int64_t cores_of_group(const std::filesystem::path& group) {
  std::int64_t quota = 0;
  std::int64_t period = 0;
  if (std::ifstream both(group / "cpu.max"); both >> quota >> period) {
    return cores_worth(quota, period);
  }
  std::ifstream first(group / "cpu.cfs_quota_us");
  std::ifstream second(group / "cpu.cfs_period_us");
  return first >> quota && second >> period ? cores_worth(quota, period) : no_limit;
}

/// The least limit of a group and of all groups that contain it. A container can see its own group as `mounted`.
std::int64_t cores_of_groups(const std::filesystem::path& mounted, std::filesystem::path group) {
  std::int64_t cores = cores_of_group(mounted);
  for (; group.has_relative_path(); group = group.parent_path()) {
    cores = std::min(cores, cores_of_group(mounted / group.relative_path()));
  }
  return cores;
}

/// Whether the controllers in a line of /proc/self/cgroup ("0::/group", "4:cpu,cpuacct:/group") include the processor.
bool has_processor_time(const std::string& controllers) {
  return controllers.empty() || ("," + controllers + ",").find(",cpu,") != std::string::npos;
}

}  // namespace

std::optional<std::int64_t> cores_of_control_groups(const std::filesystem::path& root) {
  std::int64_t cores = no_limit;
  std::ifstream groups(root / "proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) {
      continue;
    }
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (has_processor_time(controllers)) {
      const std::filesystem::path mounted = root / "sys/fs/cgroup" / controllers;
      cores = std::min(cores, cores_of_groups(mounted, line.substr(second + 1)));
    }
  }
  return cores == no_limit ? std::nullopt : std::optional(cores);
}

std::int64_t usable_cores() {
  const std::int64_t cores = cores_of_affinity();
  return std::min(cores, cores_of_control_groups("/").value_or(cores));
}

}  // namespace shardrun::device
