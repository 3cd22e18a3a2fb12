#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace shardrun::device {

/// The cores that the processor time of this process's control groups (containers, systemd) is worth, rounded up;
/// nothing where they have no limit. `root` is where proc/ and sys/ are.
[[nodiscard]] std::optional<std::int64_t> cores_of_control_groups(const std::filesystem::path& root);

/// Cores that this process may compute on, at least 1: those of its affinity (taskset, srun, mpirun --bind-to), but no
/// more than its control groups allow.
[[nodiscard]] std::int64_t usable_cores();

}  // namespace shardrun::device
