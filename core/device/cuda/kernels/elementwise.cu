#include "core/device/cuda/elementwise.h"

#include <algorithm>
#include <cstddef>

// Sums of many operands, and elementwise ops with options.

namespace shardrun::device::cuda {
namespace {

/// The largest number of operands of one launch. More operands take several launches, with float32 sums between them.
constexpr std::size_t most_operands = 32;

/// y = (sum so far + c0 x0) + c1 x1 + …, `pack_size` elements per thread.
struct Sum {
  Reals x[most_operands];
  float coefficients[most_operands];
  int count;
  bool has_coefficients;
  bool has_sum;  ///< false: the sum begins with the first operand
  Reals so_far;
  Reals y;
  std::int64_t size;
  bool aligned;

  SHARDRUN_ON_DEVICE void operator()(std::int64_t number) const {
    const std::int64_t i = number * pack_size;
    if (aligned && i + pack_size <= size) {
      y.set_pack(i, sum<pack_size>(i));
      return;
    }
    for (std::int64_t j = i; j < size && j < i + pack_size; ++j) {
      y.set_pack(j, sum<1>(j));
    }
  }

 private:
  template <int pack>
  SHARDRUN_ON_DEVICE Pack<pack> sum(std::int64_t i) const {
    Pack<pack> result = has_sum ? so_far.get_pack<pack>(i) : term<pack>(0, i);
    for (int k = has_sum ? 0 : 1; k < count; ++k) {
      const Pack<pack> next = term<pack>(k, i);
      for (int e = 0; e < pack; ++e) {
        result[e] += next[e];
      }
    }
    return result;
  }
  template <int pack>
  SHARDRUN_ON_DEVICE Pack<pack> term(int k, std::int64_t i) const {
    Pack<pack> values = x[k].get_pack<pack>(i);
    for (int e = 0; has_coefficients && e < pack; ++e) {
      values[e] *= coefficients[k];
    }
    return values;
  }
};

void sum_operands(const KernelCall& call, const double* coefficients) {
  const std::int64_t size = call.outputs[0].elements();
  const Reals so_far = {reinterpret_cast<unsigned char*>(call.scratch.data()), false};
  for (std::size_t first = 0; first < call.inputs.size(); first += most_operands) {
    const std::size_t count = std::min(most_operands, call.inputs.size() - first);
    const bool is_last = first + count == call.inputs.size();
    Sum sum = {.x = {},
               .coefficients = {},
               .count = static_cast<int>(count),
               .has_coefficients = coefficients != nullptr,
               .has_sum = first > 0,
               .so_far = so_far,
               .y = is_last ? reals(call.outputs[0]) : so_far,
               .size = size,
               .aligned = are_aligned(call)};
    for (std::size_t k = 0; k < count; ++k) {
      sum.x[k] = reals(call.inputs[first + k]);
      sum.coefficients[k] = coefficients == nullptr ? 1.0F : static_cast<float>(coefficients[first + k]);
    }
    for_each(call, (size + pack_size - 1) / pack_size, sum);
  }
}

std::size_t sum_scratch(const graph::OpShape& shape, int) {
  const auto elements = static_cast<std::size_t>(graph::element_count(shape.outputs[0]));
  return shape.inputs.size() > most_operands ? elements * sizeof(float) : 0;
}

void add_n(const KernelCall& call) { sum_operands(call, nullptr); }
void linear_combination(const KernelCall& call) { sum_operands(call, call.attributes.reals("coefficients").data()); }

/// x Phi(x), where Phi is the standard normal distribution function. Hendrycks and Gimpel 2016, arXiv:1606.08415,
/// section 2.
struct GeluErf {
  SHARDRUN_ON_DEVICE static float phi(float x) { return 0.5F * FloatMath::erfc(x * -0.70710678F); }
  SHARDRUN_ON_DEVICE static float value(float x) { return x * phi(x); }
  SHARDRUN_ON_DEVICE static float slope(float x) {
    return phi(x) + x * (FloatMath::exp(-0.5F * x * x) * 0.39894228F);  // 1 / sqrt(2 pi)
  }
};

/// 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))). The same paper and section.
struct GeluTanh {
  static constexpr float slope_at_zero = 0.79788456F;  // sqrt(2/pi)
  SHARDRUN_ON_DEVICE static float inner(float x) { return slope_at_zero * (x + 0.044715F * x * x * x); }
  /// (1 + tanh(x)) / 2, in a form that does not lose digits far left of zero.
  SHARDRUN_ON_DEVICE static float left(float x) { return 1.0F / (1.0F + FloatMath::exp(-2.0F * x)); }
  SHARDRUN_ON_DEVICE static float value(float x) { return x * left(inner(x)); }
  SHARDRUN_ON_DEVICE static float slope(float x) {
    const float at = inner(x);
    const float inner_slope = slope_at_zero * (1.0F + 3 * 0.044715F * x * x);
    // (1 + tanh(at)) / 2 and (1 - tanh(at)) / 2. Computed from tanh, the smaller one would lose its digits.
    const float power = FloatMath::exp(at < 0.0F ? 2.0F * at : -2.0F * at);
    const float larger = 1.0F / (1.0F + power);
    const float smaller = power * larger;
    const float of_left = at < 0.0F ? smaller : larger;
    // Far from zero one of the two is 0, and another factor may be infinite. Their product would be NaN.
    const float both = larger * smaller;
    return of_left + (both == 0.0F ? 0.0F : 2.0F * x * both * inner_slope);
  }
};

template <typename Form>
struct Gelu {
  SHARDRUN_ON_DEVICE float operator()(float x) const { return Form::value(x); }
};
template <typename Form>
struct GeluGradient {
  SHARDRUN_ON_DEVICE float operator()(float dy, float x) const { return dy * Form::slope(x); }
};

void gelu(const KernelCall& call) {
  call.attributes.text("form") == "erf" ? map<1>(call, Gelu<GeluErf>{}) : map<1>(call, Gelu<GeluTanh>{});
}
void gelu_gradient(const KernelCall& call) {
  call.attributes.text("form") == "erf" ? map<2>(call, GeluGradient<GeluErf>{})
                                        : map<2>(call, GeluGradient<GeluTanh>{});
}

const AddKernels elementwise({{"add_n", {.run = add_n, .scratch_bytes = sum_scratch}},
                              {"linear_combination", {.run = linear_combination, .scratch_bytes = sum_scratch}},
                              {"gelu", {.run = gelu}},
                              {"gelu_gradient", {.run = gelu_gradient}}});

}  // namespace
}  // namespace shardrun::device::cuda
