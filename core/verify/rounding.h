#pragma once

#include <cstdint>
#include <span>

#include "core/device/device.h"
#include "core/device/threads.h"
#include "core/graph/tensor_type.h"

namespace shardrun::verify {

/// The size of a tensor's elements, or of errors in them.
struct Size {
  double mean = 0;  ///< root mean square
  double largest = 0;
};

[[nodiscard]] Size larger(const Size& a, const Size& b) noexcept;

/// The errors to expect from rounding each value once to nearest. The mean assumes that errors of all sizes up to half
/// a unit in the last place are equally likely.
[[nodiscard]] Size rounding_of(graph::DType dtype, std::span<const double> values) noexcept;

// Functions that round as a run can do, if it stores tensors in the program's types. `stream`: selects the random
// numbers.

/// Rounds a result to its type, after a random disturbance that stands for the rounding inside of a kernel.
///
/// A kernel also rounds the partial sums of a result. So each value is first disturbed by up to half a unit in the last
/// of 20 bits. float32 has 24 bits, so this is 16 times the error of one rounding: as much as in a sum of 500 numbers
/// that is rounded after each addition. This makes more values cross zero before a relu, or change places in a maximum,
/// than rounding in a run does. Values of at most 20 bits, such as small integers, stay unchanged, so that comparisons
/// with them hold.
/// For bf16 and f16 the disturbance is up to half a unit in the type's own last place, because ranks that add up parts
/// of a result round each part to the type.
void round_result(graph::DType rounded, std::span<double> values, std::uint32_t stream, device::Threads& threads);

/// Rounds a float32 result that is cast or stored in a cache. Disturbs it as round_result() disturbs float32, and then
/// rounds it to nearest in `dtype`. Values that a bf16 or f16 cache already holds stay unchanged.
void round_stored(graph::DType dtype, std::span<double> values, std::uint32_t stream, device::Threads& threads);

/// Rounds new values of a state: disturbs the change since `before`, and rounds the result to the state's type.
void round_change(graph::DType dtype, std::span<const double> before, std::span<double> after, std::uint32_t stream);

}  // namespace shardrun::verify
