#include "tests/kernels/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>

namespace shardrun::test {
namespace {

double largest_magnitude(const Tensor& tensor) {
  double largest = 0;
  for (const double value : tensor.values) {
    largest = std::isfinite(value) ? std::max(largest, std::abs(value)) : largest;
  }
  return largest;
}

/// Whether both are NaN, or equal: also the same infinity.
bool alike(double found, double expected) { return (std::isnan(found) && std::isnan(expected)) || found == expected; }

}  // namespace

std::string difference(const Tensor& found, const Tensor& expected, Tolerance tolerance) {
  if (found.type.shape != expected.type.shape) {
    return fmt::format("shape {} where {} is expected", to_string(found.type), to_string(expected.type));
  }
  const double allowed_everywhere = tolerance.of_largest * largest_magnitude(expected);
  double worst = 0;
  std::string text;
  for (std::size_t i = 0; i < expected.values.size(); ++i) {
    const double a = found.values[i];
    const double b = expected.values[i];
    if (alike(a, b)) {
      continue;
    }
    if (!std::isfinite(a) || !std::isfinite(b)) {
      return fmt::format("element {} is {} where {} is expected", i, a, b);
    }
    const double excess = std::abs(a - b) - (tolerance.of_element * std::abs(b) + allowed_everywhere);
    if (excess > 0 && excess >= worst) {
      worst = excess;
      text = fmt::format("element {} is {} where {} is expected, off by {:.3g} of it and {:.3g} of the largest", i, a,
                         b, std::abs(a - b) / std::abs(b), std::abs(a - b) / largest_magnitude(expected));
    }
  }
  return text;
}

std::string difference(const std::vector<Tensor>& found, const std::vector<Tensor>& expected, Tolerance tolerance) {
  for (std::size_t o = 0; o < expected.size(); ++o) {
    const std::string text = difference(found[o], expected[o], tolerance);
    if (!text.empty()) {
      return fmt::format("result {}: {}", o, text);
    }
  }
  return {};
}

Tolerance float_tolerance(const Case& test) {
  static const std::set<std::string> exact = {"cast", "constant", "copy",  "embedding",     "negate",
                                              "relu", "row_max",  "shift", "relu_gradient", "take_position"};
  static const std::set<std::string> rounded_once = {"add", "multiply"};
  if (exact.count(test.op) == 1) {
    return {};
  }
  if (rounded_once.count(test.op) == 1) {
    return {.of_element = 0x1p-24};
  }
  return {.of_largest = 1e-6 * test.condition};
}

double lost_by_tensor_cores(const Prepared& prepared, bool has_convolutions_of_library) {
  const std::string_view op = prepared.op->name;
  const bool is_convolution = op.starts_with("conv");
  const auto all_are = [&](graph::DType dtype) {
    return std::ranges::all_of(prepared.inputs, [&](const Tensor& input) { return input.type.dtype == dtype; });
  };
  double lost_by_term = 0;
  if (all_are(graph::DType::bf16) && (is_convolution || op.starts_with("matmul") || op.starts_with("einsum"))) {
    lost_by_term = 0x1p-29;
  } else if (all_are(graph::DType::f32) && is_convolution && has_convolutions_of_library) {
    lost_by_term = 6 * 0x1p-29;
  } else {
    return 0;
  }
  // The number of terms of a sum: the product of the factors that no result has.
  double terms = 1;
  for (const graph::FactorId factor : prepared.rule.factors.ids()) {
    const bool is_summed = std::ranges::none_of(prepared.rule.outputs, [&](const std::vector<graph::FactorId>& dims) {
      return std::ranges::find(dims, factor) != dims.end();
    });
    terms *= is_summed ? static_cast<double>(prepared.rule.factors[factor].size) : 1;
  }
  return terms * lost_by_term;
}

const device::Device& fast() { return device::Device::find("cpu"); }
const device::Device& reference() { return device::Device::find("reference"); }

std::vector<device::cpu::LevelKernel> variants(const std::string& op) {
  std::vector<device::cpu::LevelKernel> kernels = device::cpu::kernels_of(op);
  if (kernels.empty()) {
    kernels.push_back({0, fast().kernel(op)});
  }
  return kernels;
}

std::vector<std::pair<std::size_t, std::size_t>> possible_in_place(const Prepared& prepared) {
  std::vector<std::pair<std::size_t, std::size_t>> pairs;
  for (const auto& [output, input] : prepared.op->in_place) {
    if (output < prepared.outputs.size() && input < prepared.inputs.size() &&
        prepared.outputs[output].type.shape == prepared.inputs[input].type.shape &&
        prepared.outputs[output].type.dtype == prepared.inputs[input].type.dtype) {
      pairs.emplace_back(output, input);
    }
  }
  return pairs;
}

std::vector<Tensor> run(const device::Device& device, const Prepared& prepared, const Manner& manner) {
  return execute(device, {.op = prepared.op->name,
                          .attributes = prepared.attributes,
                          .inputs = prepared.inputs,
                          .outputs = prepared.outputs,
                          .scalars = scalars_of_tests(),
                          .threads = manner.threads,
                          .accumulate = manner.accumulate,
                          .in_place = manner.in_place,
                          .kernel = manner.kernel,
                          .room = manner.room});
}

}  // namespace shardrun::test
