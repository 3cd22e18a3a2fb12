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
  std::uint64_t bytes = 0;  ///< total bytes of the files whose headers match the manifest
};

/// Checks a checkpoint's manifest, the size, hash and safetensors header of each file, and that each element of each
/// tensor lies in exactly one piece. Returns the faults, and throws no Error for them.
[[nodiscard]] Verified verify_checkpoint(const std::filesystem::path& folder);

}  // namespace shardrun::checkpoint
