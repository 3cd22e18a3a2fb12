#pragma once

#include <cstdint>
#include <span>

#include "core/device/device.h"
#include "core/device/threads.h"
#include "core/graph/tensor_type.h"

namespace shardrun::verify {

/// How large the elements of a tensor are.
struct Size {
  double mean = 0;  ///< the root of their mean square
  double largest = 0;
};

[[nodiscard]] Size larger(const Size& a, const Size& b) noexcept;

/// What rounding each of these numbers once to nearest makes of them.
[[nodiscard]] Size rounding_of(graph::DType dtype, std::span<const double> values) noexcept;

// Rounding as a run may round that stores the program's element types. `stream`: of random numbers.

/// Rounds a result that is stored in float64.
///
/// A kernel rounds the partial sums of a result, too. So a result is first disturbed at random by up to half a unit in
/// the last of 20 bits, where float32 has 24: 16 times the error of one rounding, as much as a sum of 500 numbers makes
/// that is rounded after each. More results than in a run then cross zero before a relu, or change places in a maximum,
/// so none that does in a run is a surprise. Numbers of 20 bits, such as small integers, stay: conditions on them hold.
/// Then the result is rounded to its type. One of bf16 or f16 is disturbed by up to half a unit in its own last place:
/// ranks that sum up parts of it round each to its type.
void round_result(graph::DType rounded, std::span<double> values, std::uint32_t stream, device::Threads& threads);

/// Rounds new values of a state: disturbs their difference from the values before, and rounds them to its type.
void round_change(graph::DType dtype, std::span<const double> before, std::span<double> after, std::uint32_t stream);

}  // namespace shardrun::verify
