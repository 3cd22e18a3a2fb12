#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/device/device.h"

namespace shardrun::device::cuda {

/// The GPUs that this process may use. Throws Error{job} if the driver is missing or too old, if there is no GPU, or if
/// one does not answer or is too old for this build's kernels.
[[nodiscard]] std::vector<Unit> find_gpus();

/// A GPU of this process. CUDA calls act on the GPU that their thread has chosen last, so call use() before each.
class Gpu {
 public:
  explicit Gpu(int number);  ///< throws Error{job} if the GPU does not answer

  [[nodiscard]] int number() const noexcept { return number_; }
  [[nodiscard]] const std::string& name() const noexcept { return name_; }
  [[nodiscard]] int capability() const noexcept { return capability_; }  ///< 90 for compute capability 9.0
  /// Chooses this GPU for the calling thread. Throws as check() does.
  void use() const;
  /// Throws Error if a CUDA call failed: {io} if memory is lacking or the GPU is lost, else {internal}.
  /// `attempted`: the text "copying 4 bytes to the host".
  void check(cudaError_t result, std::string_view attempted) const;

 private:
  int number_;
  std::string name_;
  int capability_;
};

}  // namespace shardrun::device::cuda
