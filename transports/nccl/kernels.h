#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <variant>

#include "transports/nccl/device.h"
#include "transports/nccl/kernels/reductions.h"

namespace shardrun::nccl_transport {

enum class KernelFunction : std::uint8_t { sum, product, to_keys, to_numbers };

/// A kernel and its arguments.
struct KernelCall {
  KernelFunction function = KernelFunction::sum;
  std::uint32_t dtype = 0;  ///< SR_DTYPE_... of its numbers
  std::variant<kernels::Reduction, kernels::Keying> arguments;
};

/// Whether this build contains the kernels, which nvcc compiles.
[[nodiscard]] bool has_kernels() noexcept;
/// The end of the message for an op that is refused without the kernels, after the op's description.
inline constexpr const char* no_kernels =
    ": NCCL drops NaN in minima and maxima, and sums in an order of its own, and this build has no kernels of ours (it "
    "was configured where no nvcc was found)";

/// The kernels on a device. All are loaded at once: loading one later might wait for streams that wait for other ranks.
/// The object is created and destroyed with the device current. In a build without kernels it is empty.
class Kernels {
 public:
  /// Throws TransportError.
  explicit Kernels(const Cuda& cuda);
  Kernels(const Kernels&) = delete;
  Kernels& operator=(const Kernels&) = delete;
  ~Kernels();

  /// Launches a kernel. REQUIRES: has_kernels, and the device is current. Throws TransportError{SR_INTERNAL} "WHAT: …".
  void launch(const KernelCall& call, CUstream stream, const std::string& what) const;

 private:
  static constexpr std::size_t functions = 4;
  static constexpr std::size_t dtypes = 4;

  const Cuda& cuda_;
  CUmodule module_ = nullptr;
  std::array<std::array<CUfunction, dtypes>, functions> functions_ = {};
};

}  // namespace shardrun::nccl_transport
