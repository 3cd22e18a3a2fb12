#include <cmath>

#include "core/device/reference/views.h"

namespace shardrun::device::reference {
namespace {

/// Parts of cross entropy that can be added over shards of the vocabulary, given the row's global maximum (Shoeybi et
/// al. 2019, arXiv:1909.08053, section 3):
///   sum_exp[l] = sum over v of exp(logits[l, v] - max[l])
///   target_logit[l] = logits[l, target[l]], or zero if another shard holds the target
/// logits: [L, V]   max, targets: [L]   sum_exp, target_logit: [L]
void softmax_terms(const KernelCall& call) {
  const TensorView& logits = call.inputs[0];
  const std::int64_t width = last_extent(logits);
  const std::int64_t first = logits.origin[logits.rank - 1];
  for_each(call, rows(logits), width, [&](std::int64_t l) {
    const double max = reals(call.inputs[1])[l];
    const std::int64_t target = integers(call.inputs[2])[l] - first;
    double sum_exp = 0;
    double target_logit = 0;
    for (std::int64_t v = 0; v < width; ++v) {
      const double logit = reals(logits)[l * width + v];
      sum_exp += std::exp(logit - max);
      if (v == target) {
        target_logit = logit;
      }
    }
    reals(call.outputs[0])[l] = sum_exp;
    reals(call.outputs[1])[l] = target_logit;
  });
}

/// dlogits[l, v] = exp(logits[l, v] - max[l]) dsum[l] + (v == target[l] ? dtarget[l] : 0).
/// logits: [L, V]   max, targets, dsum, dtarget: [L]   dlogits: [L, V]
void softmax_terms_gradient(const KernelCall& call) {
  const TensorView& logits = call.inputs[0];
  const std::int64_t width = last_extent(logits);
  const std::int64_t first = logits.origin[logits.rank - 1];
  for_each(call, rows(logits), width, [&](std::int64_t l) {
    const double max = reals(call.inputs[1])[l];
    const std::int64_t target = integers(call.inputs[2])[l] - first;
    const double dsum = reals(call.inputs[3])[l];
    const double dtarget = reals(call.inputs[4])[l];
    for (std::int64_t v = 0; v < width; ++v) {
      const double exponential = std::exp(reals(logits)[l * width + v] - max);
      reals(call.outputs[0])[l * width + v] = exponential * dsum + (v == target ? dtarget : 0);
    }
  });
}

/// loss = -log(softmax(logits)[target]) = log(sum_exp) + max - target_logit. All are [L].
void token_loss(const KernelCall& call) {
  const double* max = reals(call.inputs[0]);
  const double* sum_exp = reals(call.inputs[1]);
  const double* target_logit = reals(call.inputs[2]);
  for_each(call, call.inputs[0].elements(), 1,
           [&](std::int64_t l) { reals(call.outputs[0])[l] = std::log(sum_exp[l]) + max[l] - target_logit[l]; });
}

/// dsum_exp = dloss / sum_exp.   dloss, sum_exp, dsum_exp: [L]
void token_loss_gradient_sum(const KernelCall& call) {
  const double* dloss = reals(call.inputs[0]);
  const double* sum_exp = reals(call.inputs[1]);
  for_each(call, call.inputs[0].elements(), 1,
           [&](std::int64_t l) { reals(call.outputs[0])[l] = dloss[l] / sum_exp[l]; });
}

/// loss[l] = 0.5 * sum over f of (y[l, f] - t[l, f])^2.   y, t: [L, F]   loss: [L]
void squared_error(const KernelCall& call) {
  const double* y = reals(call.inputs[0]);
  const double* t = reals(call.inputs[1]);
  const std::int64_t width = last_extent(call.inputs[0]);
  for_each(call, rows(call.inputs[0]), width, [&](std::int64_t l) {
    double sum = 0;
    for (std::int64_t i = l * width; i < (l + 1) * width; ++i) {
      sum += (y[i] - t[i]) * (y[i] - t[i]);
    }
    reals(call.outputs[0])[l] = 0.5 * sum;
  });
}

/// dy[l, f] = (y[l, f] - t[l, f]) dloss[l].
void squared_error_gradient(const KernelCall& call) {
  const double* y = reals(call.inputs[0]);
  const double* t = reals(call.inputs[1]);
  const double* dloss = reals(call.inputs[2]);
  const std::int64_t width = last_extent(call.inputs[0]);
  for_each(call, rows(call.inputs[0]), width, [&](std::int64_t l) {
    for (std::int64_t i = l * width; i < (l + 1) * width; ++i) {
      reals(call.outputs[0])[i] = (y[i] - t[i]) * dloss[l];
    }
  });
}

const RegisterKernel register_softmax_terms("reference", "softmax_terms", {.run = softmax_terms});
const RegisterKernel register_softmax_terms_gradient("reference", "softmax_terms_gradient",
                                                     {.run = softmax_terms_gradient});
const RegisterKernel register_token_loss("reference", "token_loss", {.run = token_loss});
const RegisterKernel register_token_loss_gradient_sum("reference", "token_loss_gradient_sum",
                                                      {.run = token_loss_gradient_sum});
const RegisterKernel register_squared_error("reference", "squared_error", {.run = squared_error});
const RegisterKernel register_squared_error_gradient("reference", "squared_error_gradient",
                                                     {.run = squared_error_gradient});

}  // namespace
}  // namespace shardrun::device::reference
