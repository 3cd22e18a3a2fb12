#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace shardrun::device {

/// The processor time of this process's control groups (containers, systemd) in cores, rounded up; nothing if they have
/// no limit. `root`: the folder with proc/ and sys/.
[[nodiscard]] std::optional<std::int64_t> cores_of_control_groups(const std::filesystem::path& root);

/// Cores that this process may use, at least 1: its affinity (taskset, srun, mpirun --bind-to), limited by its control
/// groups.
[[nodiscard]] std::int64_t usable_cores();

}  // namespace shardrun::device
