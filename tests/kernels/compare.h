#pragma once

#include <string>
#include <vector>

#include "core/device/cpu/variant.h"
#include "tests/kernels/case.h"
#include "tests/support/evaluate.h"

namespace shardrun::test {

/// How far an element may be off: a share of its own magnitude plus a share of the tensor's largest (finite) one.
struct Tolerance {
  double of_element = 0;
  double of_largest = 0;
};

/// Describes the element of `found` that is furthest outside the tolerance, or the first that is NaN or infinite if the
/// other is not. "" if there is none.
[[nodiscard]] std::string difference(const Tensor& found, const Tensor& expected, Tolerance tolerance);

/// The same over all results of an op.
[[nodiscard]] std::string difference(const std::vector<Tensor>& found, const std::vector<Tensor>& expected,
                                     Tolerance tolerance);

/// How far the op's fast kernels may be off from the reference.
[[nodiscard]] Tolerance float_tolerance(const Case& test);

/// The further error that tensor cores may make in a product, as a share of the largest element:
/// - bfloat16: tensor cores round a sum toward zero after every 16 terms.
/// - Convolutions of float32: cuDNN's engine 67 for the weights' gradient has no numerical note. On an H200 it lost as
///   much as three TF32 products for each term do: rounded toward zero after every 8 terms, three times.
/// - 0 for other ops of float32, also for convolutions by our own kernels, and for ops that are no products.
[[nodiscard]] double lost_by_tensor_cores(const Prepared& prepared, bool has_convolutions_of_library);

inline constexpr Tolerance bit_for_bit = {};

[[nodiscard]] const device::Device& fast();
[[nodiscard]] const device::Device& reference();

/// The op's kernels for every instruction set that this machine has. One of them is the one that the device chooses.
[[nodiscard]] std::vector<device::cpu::LevelKernel> variants(const std::string& op);

/// The pairs of an op's `in_place` that this case has and whose tensors are of one type.
[[nodiscard]] std::vector<std::pair<std::size_t, std::size_t>> possible_in_place(const Prepared& prepared);

/// How a case is run.
struct Manner {
  int threads = 1;
  bool accumulate = false;
  std::vector<std::pair<std::size_t, std::size_t>> in_place = {};
  const device::Kernel* kernel = nullptr;
  conformance::DeviceRoom* room = nullptr;
};
/// Runs a prepared case.
[[nodiscard]] std::vector<Tensor> run(const device::Device& device, const Prepared& prepared,
                                      const Manner& manner = {});

}  // namespace shardrun::test
