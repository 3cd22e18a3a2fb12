#pragma once

#include <cstdint>
#include <filesystem>

namespace shardrun::task {

/// Cores that this process may compute on, at least 1: those of its affinity (taskset, srun, mpirun --bind-to), and no
/// more than the processor time of its control groups (containers, systemd) is worth, rounded up. `root` is where
/// proc/ and sys/ are.
[[nodiscard]] std::int64_t usable_cores(const std::filesystem::path& root);
[[nodiscard]] std::int64_t usable_cores();

}  // namespace shardrun::task
