#pragma once

#include <vector>

namespace shardrun::device::cuda {

/// The entries of all kernels that launch() can enqueue, as CUDA knows them. They are added when the library is loaded.
[[nodiscard]] inline std::vector<const void*>& known_kernels() {
  static std::vector<const void*> all;
  return all;
}

}  // namespace shardrun::device::cuda
