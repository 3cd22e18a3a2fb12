#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>

namespace shardrun::device {

/// The processor time that this process's control groups (containers, systemd) allow, in cores, rounded up. Nothing if
/// they set no limit. `root`: the folder that contains proc/ and sys/.
[[nodiscard]] std::optional<std::int64_t> cores_of_control_groups(const std::filesystem::path& root);

/// The number of cores that this process can use, at least 1: those of its affinity (taskset, srun, mpirun --bind-to),
/// limited by its control groups.
[[nodiscard]] std::int64_t usable_cores();

}  // namespace shardrun::device
