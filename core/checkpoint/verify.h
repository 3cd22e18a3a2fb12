#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace shardrun::checkpoint {

/// The result of verify_checkpoint().
struct Verified {
  std::vector<std::string> faults;
  std::int64_t files = 0;
  std::int64_t tensors = 0;
  std::uint64_t bytes = 0;  ///< total bytes read
};

/// Checks a checkpoint's folder: its manifest; the size, the hash and the safetensors header of each file; and that
/// each element of each tensor lies in exactly one piece. Returns every fault.
[[nodiscard]] Verified verify_checkpoint(const std::filesystem::path& folder);

}  // namespace shardrun::checkpoint
