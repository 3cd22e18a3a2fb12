#include <optional>

#include "core/device/cuda/elementwise.h"
#include "core/device/cuda/fusions.h"
#include "core/device/cuda/rows.h"

// Losses. Cross entropy is computed in parts that can be added over shards of the vocabulary, given the row's maximum.
// logits, dlogits: [L, V]   max, targets, sum_exp, target_logit, dsum, dtarget: [L]

namespace shardrun::device::cuda {
namespace {

/// max[l] = the largest logits[l, v].
struct RowMax {
  Reals logits;
  Reals max;
  std::int64_t width;

  template <int pack, typename RowTeam>
  SHARDRUN_ON_DEVICE void compute(RowTeam& team, std::int64_t row) const {
    float largest = -static_cast<float>(__builtin_huge_val());
    team.template loop<pack, 4>(
        width, [&](std::int64_t v) { return logits.get_pack<pack>(row * width + v); },
        [&](std::int64_t, const Pack<pack>& values) {
          SHARDRUN_UNROLLED for (int k = 0; k < pack; ++k) { largest = Larger{}(largest, values[k]); }
        });
    largest = team.max(largest);
    if (team.member() == 0) {
      max.set(row, largest);
    }
  }
};

void row_max(const KernelCall& call) {
  const std::int64_t width = columns(call.inputs[0]);
  for_each_row(call, rows(call.inputs[0]), width, RowMax{reals(call.inputs[0]), reals(call.outputs[0]), width});
}

/// sum_exp[l] = sum over v of exp(logits[l, v] - max[l]), target_logit[l] = logits[l, target[l]], or zero if another
/// shard holds the target.
struct SoftmaxTerms {
  Reals logits;
  Reals max;
  const std::int32_t* targets;
  Reals sum_exp;
  Reals target_logit;
  std::int64_t width;
  std::int64_t first;  ///< the vocabulary index of this shard's first column

  template <int pack, typename RowTeam>
  SHARDRUN_ON_DEVICE void compute(RowTeam& team, std::int64_t row) const {
    const float largest = max.get(row);
    float sum = 0;
    team.template loop<pack, 4>(
        width, [&](std::int64_t v) { return logits.get_pack<pack>(row * width + v); },
        [&](std::int64_t, const Pack<pack>& values) {
          SHARDRUN_UNROLLED for (int k = 0; k < pack; ++k) { sum += fast_exp(values[k] - largest); }
        });
    sum = team.sum(sum);
    if (team.member() == 0) {
      const std::int64_t target = targets[row] - first;
      sum_exp.set(row, sum);
      target_logit.set(row, target >= 0 && target < width ? logits.get(row * width + target) : 0.0F);
    }
  }
};

void softmax_terms(const KernelCall& call) {
  const TensorView& logits = call.inputs[0];
  const std::int64_t width = columns(logits);
  for_each_row(call, rows(logits), width,
               SoftmaxTerms{.logits = reals(logits),
                            .max = reals(call.inputs[1]),
                            .targets = integers(call.inputs[2]),
                            .sum_exp = reals(call.outputs[0]),
                            .target_logit = reals(call.outputs[1]),
                            .width = width,
                            .first = logits.origin[logits.rank - 1]});
}

/// RowMax and SoftmaxTerms in one pass over the logits: each thread sums exp(logit - largest logit so far), and scales
/// its sum down when it finds a larger logit. Milakov and Gimelshein 2018, arXiv:1805.02867, algorithm 3.
struct MaxAndTerms {
  Reals logits;
  const std::int32_t* targets;
  Reals max;
  Reals sum_exp;
  Reals target_logit;
  std::int64_t width;
  std::int64_t first;

  template <int pack, typename RowTeam>
  SHARDRUN_ON_DEVICE void compute(RowTeam& team, std::int64_t row) const {
    constexpr float lowest = -3.402823466e+38F;  // not -infinity, because the difference of two infinities is NaN
    float largest = lowest;
    float sum = 0;
    team.template loop<pack, 4>(
        width, [&](std::int64_t v) { return logits.get_pack<pack>(row * width + v); },
        [&](std::int64_t, const Pack<pack>& values) {
          float next = largest;
          SHARDRUN_UNROLLED for (int k = 0; k < pack; ++k) { next = Larger{}(next, values[k]); }
          float terms = 0;
          SHARDRUN_UNROLLED for (int k = 0; k < pack; ++k) { terms += fast_exp(values[k] - next); }
          sum = sum * fast_exp(largest - next) + terms;
          largest = next;
        });
    float of_row = team.max(largest);
    sum = team.sum(sum * fast_exp(largest - of_row));
    if (of_row == lowest) {  // all logits are -infinity: the same result as RowMax and SoftmaxTerms
      of_row = -static_cast<float>(__builtin_huge_val());
      sum = of_row - of_row;
    }
    if (team.member() == 0) {
      const std::int64_t target = targets[row] - first;
      max.set(row, of_row);
      sum_exp.set(row, sum);
      target_logit.set(row, target >= 0 && target < width ? logits.get(row * width + target) : 0.0F);
    }
  }
};

void max_and_terms(const KernelCall& call) {
  const TensorView& logits = call.inputs[0];
  const std::int64_t width = columns(logits);
  for_each_row(call, rows(logits), width,
               MaxAndTerms{.logits = reals(logits),
                           .targets = integers(call.inputs[1]),
                           .max = reals(call.outputs[0]),
                           .sum_exp = reals(call.outputs[1]),
                           .target_logit = reals(call.outputs[2]),
                           .width = width,
                           .first = logits.origin[logits.rank - 1]});
}

std::optional<FusedArguments> of_max_and_terms(const PreparedKernel& max, const PreparedKernel& terms) {
  if (!is_same(max.inputs[0], terms.inputs[0]) || !is_same(max.outputs[0], terms.inputs[1])) {
    return std::nullopt;
  }
  return FusedArguments{{terms.inputs[0], terms.inputs[2]}, {max.outputs[0], terms.outputs[0], terms.outputs[1]}};
}

/// dlogits[l, v] = exp(logits[l, v] - max[l]) dsum[l] + (v == target[l] ? dtarget[l] : 0).
struct SoftmaxTermsGradient {
  Reals logits;
  Reals max;
  const std::int32_t* targets;
  Reals dsum;
  Reals dtarget;
  Reals dlogits;
  std::int64_t width;
  std::int64_t first;

  template <int pack, typename RowTeam>
  SHARDRUN_ON_DEVICE void compute(RowTeam& team, std::int64_t row) const {
    const float largest = max.get(row);
    const float of_sum = dsum.get(row);
    const float of_target = dtarget.get(row);
    const std::int64_t target = targets[row] - first;
    team.template loop<pack, 4>(
        width, [&](std::int64_t v) { return logits.get_pack<pack>(row * width + v); },
        [&](std::int64_t v, Pack<pack> values) {
          SHARDRUN_UNROLLED for (int k = 0; k < pack; ++k) { values[k] = fast_exp(values[k] - largest) * of_sum; }
          if (target >= v && target - v < pack) {  // true in at most one thread
            SHARDRUN_UNROLLED for (int k = 0; k < pack; ++k) { values[k] += v + k == target ? of_target : 0.0F; }
          }
          dlogits.set_pack(row * width + v, values);
        });
  }
};

void softmax_terms_gradient(const KernelCall& call) {
  const TensorView& logits = call.inputs[0];
  const std::int64_t width = columns(logits);
  for_each_row(call, rows(logits), width,
               SoftmaxTermsGradient{.logits = reals(logits),
                                    .max = reals(call.inputs[1]),
                                    .targets = integers(call.inputs[2]),
                                    .dsum = reals(call.inputs[3]),
                                    .dtarget = reals(call.inputs[4]),
                                    .dlogits = reals(call.outputs[0]),
                                    .width = width,
                                    .first = logits.origin[logits.rank - 1]});
}

/// loss = log(sum_exp) + max - target_logit.   operands: max, sum_exp, target_logit
struct TokenLoss {
  SHARDRUN_ON_DEVICE float operator()(float max, float sum_exp, float target_logit) const {
    return FloatMath::log(sum_exp) + max - target_logit;
  }
};
void token_loss(const KernelCall& call) { map<3>(call, TokenLoss{}); }

/// d loss / d sum_exp, times dloss.
struct TokenLossGradient {
  SHARDRUN_ON_DEVICE float operator()(float dloss, float sum_exp) const { return dloss / sum_exp; }
};
void token_loss_gradient_sum(const KernelCall& call) { map<2>(call, TokenLossGradient{}); }

/// loss[l] = 0.5 * sum over f of (y[l, f] - t[l, f])^2.
struct SquaredError {
  Reals y;
  Reals t;
  Reals loss;
  std::int64_t width;

  template <int pack, typename RowTeam>
  SHARDRUN_ON_DEVICE void compute(RowTeam& team, std::int64_t row) const {
    float sum = 0;
    team.template loop<pack>(width, [&](std::int64_t f) {
      const Pack<pack> found = y.get_pack<pack>(row * width + f);
      const Pack<pack> wanted = t.get_pack<pack>(row * width + f);
      for (int k = 0; k < pack; ++k) {
        sum += (found[k] - wanted[k]) * (found[k] - wanted[k]);
      }
    });
    sum = team.sum(sum);
    if (team.member() == 0) {
      loss.set(row, 0.5F * sum);
    }
  }
};

void squared_error(const KernelCall& call) {
  const std::int64_t width = columns(call.inputs[0]);
  for_each_row(call, rows(call.inputs[0]), width,
               SquaredError{reals(call.inputs[0]), reals(call.inputs[1]), reals(call.outputs[0]), width});
}

/// dy[l, f] = (y[l, f] - t[l, f]) dloss[l].
struct SquaredErrorGradient {
  Reals y;
  Reals t;
  Reals dloss;
  Reals dy;
  std::int64_t width;

  template <int pack, typename RowTeam>
  SHARDRUN_ON_DEVICE void compute(RowTeam& team, std::int64_t row) const {
    const float gradient = dloss.get(row);
    team.template loop<pack>(width, [&](std::int64_t f) {
      Pack<pack> found = y.get_pack<pack>(row * width + f);
      const Pack<pack> wanted = t.get_pack<pack>(row * width + f);
      for (int k = 0; k < pack; ++k) {
        found[k] = (found[k] - wanted[k]) * gradient;
      }
      dy.set_pack(row * width + f, found);
    });
  }
};

void squared_error_gradient(const KernelCall& call) {
  const std::int64_t width = columns(call.inputs[0]);
  for_each_row(call, rows(call.inputs[0]), width,
               SquaredErrorGradient{reals(call.inputs[0]), reals(call.inputs[1]), reals(call.inputs[2]),
                                    reals(call.outputs[0]), width});
}

const AddKernels losses({{"row_max", {.run = row_max}},
                         {"softmax_terms", {.run = softmax_terms}},
                         {"softmax_terms_gradient", {.run = softmax_terms_gradient}},
                         {"token_loss", {.run = token_loss}},
                         {"token_loss_gradient_sum", {.run = token_loss_gradient_sum}},
                         {"squared_error", {.run = squared_error}},
                         {"squared_error_gradient", {.run = squared_error_gradient}}});

const AddFusedKernels fused({{"row_max", "softmax_terms", max_and_terms, of_max_and_terms}});

}  // namespace
}  // namespace shardrun::device::cuda
