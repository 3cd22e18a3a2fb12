#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/device/device.h"
#include "core/device/threads.h"

/// The reference kernels compute every op in float64, directly by its formula, except for what the op itself defines in
/// float32. Tensors of reals are stored as `double`. For speed, Eigen multiplies matrices, and threads share the work.
namespace shardrun::device::reference {

[[nodiscard]] inline double* reals(const TensorView& tensor) noexcept { return static_cast<double*>(tensor.data); }
[[nodiscard]] inline std::int32_t* integers(const TensorView& tensor) noexcept {
  return static_cast<std::int32_t*>(tensor.data);
}

/// Product of the dimensions [first, last).
[[nodiscard]] inline std::int64_t extent(const TensorView& tensor, std::uint32_t first, std::uint32_t last) noexcept {
  std::int64_t product = 1;
  for (std::uint32_t d = first; d < last; ++d) {
    product *= tensor.shape[d];
  }
  return product;
}

/// Length of the last dimension.
[[nodiscard]] inline std::int64_t last_extent(const TensorView& tensor) noexcept {
  return extent(tensor, tensor.rank - 1, tensor.rank);
}

/// Product of all dimensions except the last.
[[nodiscard]] inline std::int64_t rows(const TensorView& tensor) noexcept { return extent(tensor, 0, tensor.rank - 1); }

/// The least number of operations for a thread. With fewer, a second thread costs more time than it saves.
inline constexpr std::int64_t grain = 16384;

/// Calls body(i) for each i in [0, count), on all threads. `work`: roughly the number of operations in one call. Each
/// call must compute results of its own, so that they have the same bits with any number of threads.
template <typename Body>
void for_each(const KernelCall& call, std::int64_t count, std::int64_t work, const Body& body) {
  call.threads.split(count, grain / (work + 1) + 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      body(i);
    }
  });
}

/// Sets one element of outputs[0], or adds to it if the op accumulates.
inline void put(const KernelCall& call, std::int64_t index, double value) noexcept {
  double& element = reals(call.outputs[0])[index];
  element = call.accumulate ? element + value : value;
}

}  // namespace shardrun::device::reference
