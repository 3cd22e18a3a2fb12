#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace shardrun::memory {

/// What may still be taken of memory, and by which limit.
struct MemoryRoom {
  std::uint64_t bytes = 0;  ///< that are left
  std::uint64_t limit = 0;  ///< of which they are left; 0: the machine's own memory
  std::string name;         ///< of the limit, and where it is set; "": the machine's own memory
};

/// What this machine could still give to the processes that are started from here: what the kernel says is available,
/// or what a control group leaves, this process's own or one above it, if that is less. Files that the kernel keeps in
/// memory and can drop count as left. Nothing where nothing can be read. `root`: of the files that are read.
[[nodiscard]] std::optional<MemoryRoom> available_memory(const std::filesystem::path& root = "/");

/// What such processes may take before a control group slows them down (memory.high); nothing where none does.
[[nodiscard]] std::optional<MemoryRoom> memory_at_full_speed(const std::filesystem::path& root = "/");

/// The address space that this process may still take, as may each process that it starts (ulimit -v); nothing where no
/// limit is set. Other rlimits do not bind: the arena is shared memory, which RLIMIT_DATA does not count, and no memory
/// is locked.
[[nodiscard]] std::optional<MemoryRoom> address_space();

/// "this machine has 3.2 GiB available", "the control group of this process (/sys/fs/cgroup/a/memory.max) leaves 1 GiB
/// of its 2 GiB". `left`, `limit`: those of the room, in a person's units.
[[nodiscard]] std::string to_string(const MemoryRoom& room, const std::string& left, const std::string& limit);

}  // namespace shardrun::memory
