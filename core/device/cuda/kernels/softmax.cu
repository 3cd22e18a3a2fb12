#include "core/device/cuda/rows.h"

// Softmax over the last dimension, its logarithm, and their gradients.   x, y, dy, dx: [L, E]
//
// Results may overwrite operands: a thread reads only elements that it will write itself, or its team has read all
// elements before any thread writes.

namespace shardrun::device::cuda {
namespace {

/// y = exp(x - max) / sum of exp(x - max), or its logarithm.
template <bool is_log>
struct Softmax {
  Reals x;
  Reals y;
  std::int64_t width;

  template <int pack, typename RowTeam>
  SHARDRUN_ON_DEVICE void compute(RowTeam& team, std::int64_t row) const {
    const std::int64_t from = row * width;
    float largest = -static_cast<float>(__builtin_huge_val());
    team.template loop<pack>(width, [&](std::int64_t e) {
      const Pack<pack> values = x.get_pack<pack>(from + e);
      for (int k = 0; k < pack; ++k) {
        largest = Larger{}(largest, values[k]);
      }
    });
    const float max = team.max(largest);
    float sum = 0;
    team.template loop<pack>(width, [&](std::int64_t e) {
      const Pack<pack> values = x.get_pack<pack>(from + e);
      for (int k = 0; k < pack; ++k) {
        sum += FloatMath::exp(values[k] - max);
      }
    });
    const float total = team.sum(sum);
    const float log_total = FloatMath::log(total);
    team.template loop<pack>(width, [&](std::int64_t e) {
      Pack<pack> values = x.get_pack<pack>(from + e);
      for (int k = 0; k < pack; ++k) {
        values[k] = is_log ? (values[k] - max) - log_total : FloatMath::exp(values[k] - max) / total;
      }
      y.set_pack(from + e, values);
    });
  }
};

template <bool is_log>
void softmax(const KernelCall& call) {
  const std::int64_t width = columns(call.inputs[0]);
  for_each_row(call, rows(call.inputs[0]), width,
               Softmax<is_log>{reals(call.inputs[0]), reals(call.outputs[0]), width});
}

/// dx = y (dy - sum of dy y); for the logarithm, dx = dy - exp(y) sum of dy.
template <bool is_log>
struct SoftmaxGradient {
  Reals dy;
  Reals y;
  Reals dx;
  std::int64_t width;

  template <int pack, typename RowTeam>
  SHARDRUN_ON_DEVICE void compute(RowTeam& team, std::int64_t row) const {
    const std::int64_t from = row * width;
    float part = 0;
    team.template loop<pack>(width, [&](std::int64_t e) {
      const Pack<pack> gradients = dy.get_pack<pack>(from + e);
      if constexpr (is_log) {
        for (int k = 0; k < pack; ++k) {
          part += gradients[k];
        }
      } else {
        const Pack<pack> values = y.get_pack<pack>(from + e);
        for (int k = 0; k < pack; ++k) {
          part += gradients[k] * values[k];
        }
      }
    });
    const float sum = team.sum(part);
    team.template loop<pack>(width, [&](std::int64_t e) {
      Pack<pack> gradients = dy.get_pack<pack>(from + e);
      const Pack<pack> values = y.get_pack<pack>(from + e);
      for (int k = 0; k < pack; ++k) {
        gradients[k] = is_log ? gradients[k] - FloatMath::exp(values[k]) * sum : values[k] * (gradients[k] - sum);
      }
      dx.set_pack(from + e, gradients);
    });
  }
};

template <bool is_log>
void softmax_gradient(const KernelCall& call) {
  const std::int64_t width = columns(call.inputs[0]);
  for_each_row(call, rows(call.inputs[0]), width,
               SoftmaxGradient<is_log>{reals(call.inputs[0]), reals(call.inputs[1]), reals(call.outputs[0]), width});
}

const AddKernels kernels({{"softmax", {.run = softmax<false>}},
                          {"log_softmax", {.run = softmax<true>}},
                          {"softmax_gradient", {.run = softmax_gradient<false>}},
                          {"log_softmax_gradient", {.run = softmax_gradient<true>}}});

}  // namespace
}  // namespace shardrun::device::cuda
