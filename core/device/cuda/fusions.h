#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "core/device/device.h"

/// Pairs of consecutive ops that one kernel of our own computes.
namespace shardrun::device::cuda {

/// The tensors that a fused kernel reads and writes. It writes every tensor that the two separate ops would write.
struct FusedArguments {
  std::vector<TensorView> inputs;
  std::vector<TensorView> outputs;
};

struct FusedKernel {
  const char* first;
  const char* next;
  void (*run)(const KernelCall& call);
  /// Returns the fused kernel's arguments, or nothing if these two ops cannot be fused.
  std::optional<FusedArguments> (*arguments)(const PreparedKernel& first, const PreparedKernel& next);
};

/// A fused kernel in the form to which PreparedKernel::kernel points.
struct KnownFusion {
  explicit KnownFusion(const FusedKernel& fused)
      : fused(fused), ops(std::string(fused.first) + " + " + fused.next), kernel{.run = fused.run, .op = ops} {}
  KnownFusion(const KnownFusion&) = delete;
  KnownFusion& operator=(const KnownFusion&) = delete;

  FusedKernel fused;
  std::string ops;
  Kernel kernel;
};

/// All fused kernels. They are added when the library is loaded.
[[nodiscard]] inline std::deque<KnownFusion>& known_fusions() {
  static std::deque<KnownFusion> all;
  return all;
}

/// Adds fused kernels, at namespace scope: `const AddFusedKernels table({{"row_max", "softmax_terms", run,
/// arguments}, …});`
class AddFusedKernels {
 public:
  AddFusedKernels(std::initializer_list<FusedKernel> kernels) {
    for (const FusedKernel& each : kernels) {
      known_fusions().emplace_back(each);
    }
  }
};

/// Prepares our own fused kernel for `first` and `next`. Null if there is none, or if it cannot fuse them.
[[nodiscard]] inline std::unique_ptr<const PreparedKernel> fuse_own(const PreparedKernel& first,
                                                                    const PreparedKernel& next) {
  for (const KnownFusion& known : known_fusions()) {
    if (first.kernel->op != known.fused.first || next.kernel->op != known.fused.next) {
      continue;
    }
    if (std::optional<FusedArguments> arguments = known.fused.arguments(first, next)) {
      auto made = std::make_unique<PreparedKernel>();
      made->kernel = &known.kernel;
      made->attributes = first.attributes;
      made->inputs = std::move(arguments->inputs);
      made->outputs = std::move(arguments->outputs);
      made->makes = next.makes;
      return made;
    }
  }
  return nullptr;
}

[[nodiscard]] inline bool have_same_shape(const TensorView& one, const TensorView& other) {
  return one.dtype == other.dtype && one.rank == other.rank &&
         std::ranges::equal(std::span(one.shape).first(one.rank), std::span(other.shape).first(other.rank));
}
[[nodiscard]] inline bool overlap(const void* begin, std::size_t bytes, const TensorView& tensor) {
  const auto one = reinterpret_cast<std::uintptr_t>(begin);
  const auto other = reinterpret_cast<std::uintptr_t>(tensor.data);
  return one < other + tensor.bytes() && other < one + bytes;
}
[[nodiscard]] inline bool is_same(const TensorView& one, const TensorView& other) {
  return one.data == other.data && have_same_shape(one, other);
}

}  // namespace shardrun::device::cuda
