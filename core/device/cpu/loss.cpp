#include "core/device/cpu/elementwise.h"
#include "core/device/cpu/vec_math.h"

namespace shardrun::device::cpu::SHARDRUN_KERNEL_VARIANT {
namespace {

/// Calls body(row, width) for each row of inputs[0], over the threads.
template <typename Body>
void for_each_row(const KernelCall& call, const Body& body) {
  const std::int64_t width = columns(call.inputs[0]);
  call.threads.split(rows(call.inputs[0]), row_grain(width), [&](std::int64_t begin, std::int64_t end) {
    const Body local = body;
    for (std::int64_t r = begin; r < end; ++r) {
      local(r, width);
    }
  });
}

/// x: [L, V]   y: [L]
void row_max(const KernelCall& call) {
  const float* x = floats(call.inputs[0]);
  float* y = floats(call.outputs[0]);
  for_each_row(call, [=](std::int64_t r, std::int64_t width) {
    const float* row = x + r * width;
    y[r] = largest_of(width, [=](auto at) { return load(row, at); });
  });
}

/// Where the columns of this shard begin in the whole vocabulary.
std::int64_t first_column(const TensorView& logits) { return logits.origin[logits.rank - 1]; }

/// logits: [L, V]   max, targets: [L]   sum_exp: [L] = Σ exp(logit - max)   target_logit: [L], 0 in another's shard
void softmax_terms(const KernelCall& call) {
  const float* logits = floats(call.inputs[0]);
  const float* max = floats(call.inputs[1]);
  const std::int32_t* targets = integers(call.inputs[2]);
  float* sums = floats(call.outputs[0]);
  float* target_logits = floats(call.outputs[1]);
  const std::int64_t first = first_column(call.inputs[0]);
  for_each_row(call, [=](std::int64_t r, std::int64_t width) {
    const float* row = logits + r * width;
    const float m = max[r];
    sums[r] = sum_of(width, [=](auto at) { return exp(load(row, at) - m); });
    const std::int64_t target = targets[r] - first;
    target_logits[r] = target >= 0 && target < width ? row[target] : 0.0F;
  });
}

/// logits: [L, V]   max, targets, dsum, dtarget: [L]   dlogits: [L, V] = exp(logit - max) dsum + [target] dtarget
void softmax_terms_gradient(const KernelCall& call) {
  const float* logits = floats(call.inputs[0]);
  const float* max = floats(call.inputs[1]);
  const std::int32_t* targets = integers(call.inputs[2]);
  const float* dsums = floats(call.inputs[3]);
  const float* dtargets = floats(call.inputs[4]);
  float* dlogits = floats(call.outputs[0]);
  const std::int64_t first = first_column(call.inputs[0]);
  for_each_row(call, [=](std::int64_t r, std::int64_t width) {
    const float* row = logits + r * width;
    float* to = dlogits + r * width;
    const float m = max[r];
    const float dsum = dsums[r];
    vectors(0, width, [=](auto at) { store(to, at, exp(load(row, at) - m) * dsum); });
    const std::int64_t target = targets[r] - first;
    if (target >= 0 && target < width) {
      to[target] += dtargets[r];
    }
  });
}

/// max, sum_exp, target_logit: [L]   loss: [L]
void token_loss(const KernelCall& call) {
  const float* max = floats(call.inputs[0]);
  const float* sums = floats(call.inputs[1]);
  const float* target_logits = floats(call.inputs[2]);
  float* loss = floats(call.outputs[0]);
  call.threads.split(call.inputs[0].elements(), grain, [=](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      loss[r] = __builtin_logf(sums[r]) + max[r] - target_logits[r];
    }
  });
}

void token_loss_gradient_sum(const KernelCall& call) {
  map_pairs(call, [](vec dloss, vec sum) { return dloss / sum; });
}

/// y, t: [L, F]   loss: [L]
void squared_error(const KernelCall& call) {
  const float* y = floats(call.inputs[0]);
  const float* t = floats(call.inputs[1]);
  float* loss = floats(call.outputs[0]);
  for_each_row(call, [=](std::int64_t r, std::int64_t width) {
    loss[r] = 0.5F * sum_of(width, [=](auto at) {
                const vec off = load(y + r * width, at) - load(t + r * width, at);
                return off * off;
              });
  });
}

/// y, t: [L, F]   dloss: [L]   dy: [L, F]
void squared_error_gradient(const KernelCall& call) {
  const float* y = floats(call.inputs[0]);
  const float* t = floats(call.inputs[1]);
  const float* dloss = floats(call.inputs[2]);
  float* dy = floats(call.outputs[0]);
  for_each_row(call, [=](std::int64_t r, std::int64_t width) {
    const float scale = dloss[r];
    vectors(r * width, (r + 1) * width, [=](auto at) { store(dy, at, (load(y, at) - load(t, at)) * scale); });
  });
}

}  // namespace
}  // namespace shardrun::device::cpu::SHARDRUN_KERNEL_VARIANT

SHARDRUN_KERNELS(loss, {"row_max", {.run = row_max}}, {"softmax_terms", {.run = softmax_terms}},
                 {"softmax_terms_gradient", {.run = softmax_terms_gradient}}, {"token_loss", {.run = token_loss}},
                 {"token_loss_gradient_sum", {.run = token_loss_gradient_sum}},
                 {"squared_error", {.run = squared_error}}, {"squared_error_gradient", {.run = squared_error_gradient}})
