#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace shardrun::memory {

/// The memory that can still be allocated, and the limit that decides it.
struct MemoryRoom {
  std::uint64_t bytes = 0;  ///< still available
  std::uint64_t limit = 0;  ///< the limit in bytes; 0: the machine's own memory
  std::string name;         ///< the limit's name and place; "": the machine's own memory
};

/// The memory that this machine can still give to this process and those that it starts: the kernel's number, or what a
/// control group of this process leaves, if that is less. File caches that the kernel can drop count as available.
/// Nothing if no number can be read. `root`: the folder that contains proc/ and sys/.
[[nodiscard]] std::optional<MemoryRoom> available_memory(const std::filesystem::path& root = "/");

/// The memory that these processes can allocate before a control group slows them (memory.high); nothing if none does.
[[nodiscard]] std::optional<MemoryRoom> memory_at_full_speed(const std::filesystem::path& root = "/");

/// The memory that a process like this one takes as a rank: this process's present private memory and process_growth.
/// `root`: the folder that contains proc/ and sys/.
[[nodiscard]] std::uint64_t process_bytes(const std::filesystem::path& root = "/");

/// Bytes that a rank adds to its private memory at present: pages of libraries, stacks, sockets and page tables.
inline constexpr std::uint64_t process_growth = std::uint64_t{3} << 20U;

/// The address space that this process, and each process that it starts, can still use (ulimit -v); nothing if there is
/// no limit. Other rlimits do not matter: the arena is shared memory, which RLIMIT_DATA does not count, and no memory
/// is locked.
[[nodiscard]] std::optional<MemoryRoom> address_space();

/// As text: "this machine has 3.2 GiB available", "the control group of this process (/sys/fs/cgroup/a/memory.max)
/// leaves 1 GiB of its 2 GiB". `left`, `limit`: the room's numbers, formatted.
[[nodiscard]] std::string to_string(const MemoryRoom& room, const std::string& left, const std::string& limit);

}  // namespace shardrun::memory
