#pragma once

#include <vector>

namespace shardrun::device::cuda {

/// The entry functions of all kernels that launch() can enqueue, as CUDA identifies them. They are added when the
/// library is loaded.
[[nodiscard]] inline std::vector<const void*>& known_kernels() {
  static std::vector<const void*> all;
  return all;
}

}  // namespace shardrun::device::cuda
