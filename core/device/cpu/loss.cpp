#include "core/device/cpu/elementwise.h"
#include "core/device/cpu/vec_math.h"

namespace shardrun::device::cpu::SHARDRUN_KERNEL_VARIANT {
namespace {

/// Calls body(row, width) for each row of inputs[0], on all threads.
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

/// x: [L, V]   y: [L], the largest of each row
template <typename Pointer>
void row_max(const KernelCall& call) {
  const auto x = reals<Pointer>(call.inputs[0]);
  const auto y = reals<Pointer>(call.outputs[0]);
  for_each_row(call, [=](std::int64_t r, std::int64_t width) {
    const auto row = x + r * width;
    put(y, r, largest_of(width, [=](auto at) { return load(row, at); }));
  });
}

/// The column of the whole vocabulary at which this shard begins.
std::int64_t first_column(const TensorView& logits) { return logits.origin[logits.rank - 1]; }

/// logits: [L, V]   max, targets: [L]   sum_exp: [L] = Σ exp(logit - max)   target_logit: [L], 0 if another shard has
/// it
template <typename Pointer>
void softmax_terms(const KernelCall& call) {
  const auto logits = reals<Pointer>(call.inputs[0]);
  const auto max = reals<Pointer>(call.inputs[1]);
  const std::int32_t* targets = integers(call.inputs[2]);
  const auto sums = reals<Pointer>(call.outputs[0]);
  const auto target_logits = reals<Pointer>(call.outputs[1]);
  const std::int64_t first = first_column(call.inputs[0]);
  for_each_row(call, [=](std::int64_t r, std::int64_t width) {
    const auto row = logits + r * width;
    const float m = get(max, r);
    put(sums, r, sum_of(width, [=](auto at) { return exp(load(row, at) - m); }));
    const std::int64_t target = targets[r] - first;
    put(target_logits, r, target >= 0 && target < width ? get(row, target) : 0.0F);
  });
}

/// logits: [L, V]   max, targets, dsum, dtarget: [L]   dlogits: [L, V] = exp(logit - max) dsum + [target] dtarget
template <typename Pointer>
void softmax_terms_gradient(const KernelCall& call) {
  const auto logits = reals<Pointer>(call.inputs[0]);
  const auto max = reals<Pointer>(call.inputs[1]);
  const std::int32_t* targets = integers(call.inputs[2]);
  const auto dsums = reals<Pointer>(call.inputs[3]);
  const auto dtargets = reals<Pointer>(call.inputs[4]);
  const auto dlogits = reals<Pointer>(call.outputs[0]);
  const std::int64_t first = first_column(call.inputs[0]);
  for_each_row(call, [=](std::int64_t r, std::int64_t width) {
    const auto row = logits + r * width;
    const auto to = dlogits + r * width;
    const float m = get(max, r);
    const float dsum = get(dsums, r);
    const std::int64_t target = targets[r] - first;
    const bool held = target >= 0 && target < width;
    // This is read before dlogits is written, because dlogits can be the same memory as logits.
    const float at_target = held ? get(row, target) : 0.0F;
    vectors(0, width, [=](auto at) { store(to, at, exp(load(row, at) - m) * dsum); });
    if (held) {
      const vec softmax = exp(splat(at_target) - m) * dsum;
      put(to, target, softmax[0] + get(dtargets, r));
    }
  });
}

/// max, sum_exp, target_logit: [L]   loss: [L] = log(sum_exp) + max - target_logit
template <typename Pointer>
void token_loss(const KernelCall& call) {
  const auto max = reals<Pointer>(call.inputs[0]);
  const auto sums = reals<Pointer>(call.inputs[1]);
  const auto target_logits = reals<Pointer>(call.inputs[2]);
  const auto loss = reals<Pointer>(call.outputs[0]);
  call.threads.split(call.inputs[0].elements(), grain, [=](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      put(loss, r, __builtin_logf(get(sums, r)) + get(max, r) - get(target_logits, r));
    }
  });
}

void token_loss_gradient_sum(const KernelCall& call) {
  map<2>(call, [](vec dloss, vec sum) { return dloss / sum; });
}

/// y, t: [L, F]   loss: [L] = Σ (y - t)² / 2
template <typename Pointer>
void squared_error(const KernelCall& call) {
  const auto y = reals<Pointer>(call.inputs[0]);
  const auto t = reals<Pointer>(call.inputs[1]);
  const auto loss = reals<Pointer>(call.outputs[0]);
  for_each_row(call, [=](std::int64_t r, std::int64_t width) {
    const float squares = sum_of(width, [=](auto at) {
      const vec off = load(y + r * width, at) - load(t + r * width, at);
      return off * off;
    });
    put(loss, r, 0.5F * squares);
  });
}

/// y, t: [L, F]   dloss: [L]   dy: [L, F] = (y - t) dloss
template <typename Pointer>
void squared_error_gradient(const KernelCall& call) {
  const auto y = reals<Pointer>(call.inputs[0]);
  const auto t = reals<Pointer>(call.inputs[1]);
  const auto dloss = reals<Pointer>(call.inputs[2]);
  const auto dy = reals<Pointer>(call.outputs[0]);
  for_each_row(call, [=](std::int64_t r, std::int64_t width) {
    const float scale = get(dloss, r);
    vectors(r * width, (r + 1) * width, [=](auto at) { store(dy, at, (load(y, at) - load(t, at)) * scale); });
  });
}

}  // namespace
}  // namespace shardrun::device::cpu::SHARDRUN_KERNEL_VARIANT

SHARDRUN_KERNELS(loss, {"row_max", {.run = by_type<row_max<float*>, row_max<Reals>>}},
                 {"softmax_terms", {.run = by_type<softmax_terms<float*>, softmax_terms<Reals>>}},
                 {"softmax_terms_gradient",
                  {.run = by_type<softmax_terms_gradient<float*>, softmax_terms_gradient<Reals>>}},
                 {"token_loss", {.run = by_type<token_loss<float*>, token_loss<Reals>>}},
                 {"token_loss_gradient_sum", {.run = token_loss_gradient_sum}},
                 {"squared_error", {.run = by_type<squared_error<float*>, squared_error<Reals>>}},
                 {"squared_error_gradient",
                  {.run = by_type<squared_error_gradient<float*>, squared_error_gradient<Reals>>}})
