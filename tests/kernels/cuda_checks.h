#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tests/kernels/typed.h"

/// The checks of CUDA kernels, for the emulator (cuda_emulated.cpp) and for a device `cuda` (cuda_device.cpp).
namespace shardrun::test {

/// A case, and the types that it is run in.
struct TypedCase {
  Case test;
  Typing typing;
};

/// "all float32: matmul {contract=1} f32[a0 3, a1 5], f32[a0 5, a1 7]"
[[nodiscard]] std::string to_string(const TypedCase& typed);

/// The cases of an op in float32, in bfloat16, and small ones in mixtures of both. Some stand again with longer rows,
/// some are for CUDA's kernels alone.
[[nodiscard]] std::vector<TypedCase> cuda_cases(std::string_view op);

/// Cases that are too large for the emulator: products whose rows a library pads.
[[nodiscard]] std::vector<TypedCase> large_cuda_cases(std::string_view op);

/// Runs prepared cases on a device.
class KernelRunner {
 public:
  KernelRunner() = default;
  KernelRunner(const KernelRunner&) = delete;
  KernelRunner& operator=(const KernelRunner&) = delete;
  virtual ~KernelRunner() = default;

  /// Whether a library computes convolutions, instead of our own kernels.
  [[nodiscard]] virtual bool has_convolutions_of_library() const { return false; }
  /// The number of ways to run that must give the same bits, such as the emulator's orders of threads.
  [[nodiscard]] virtual std::size_t turns() const = 0;
  /// REQUIRES: turn < turns().
  [[nodiscard]] virtual std::vector<Tensor> run(const Prepared& prepared, const Manner& manner, std::size_t turn) = 0;
};

struct KernelCheck {
  const char* name;
  /// Returns what is wrong; "" if nothing is. Runs nothing if the check does not apply to the op. Throws what the
  /// runner throws.
  std::string (*check)(const TypedCase& typed, const Prepared& prepared, KernelRunner& runner);
};
[[nodiscard]] std::span<const KernelCheck> cuda_checks();

}  // namespace shardrun::test
