#include <type_traits>

#include "core/device/cpu/vec_math.h"
#include "core/device/cpu/views.h"

// softmax and log_softmax over the last dimension.

namespace shardrun::device::cpu::SHARDRUN_KERNEL_VARIANT {
namespace {

/// Calls body(r) for each row r of inputs[0], on all threads.
template <typename Body>
void for_each_softmax_row(const KernelCall& call, const Body& body) {
  const std::int64_t work = 4 * columns(call.inputs[0]);
  call.threads.split(rows(call.inputs[0]), row_grain(work), [&](std::int64_t begin, std::int64_t end) {
    const Body local = body;
    for (std::int64_t r = begin; r < end; ++r) {
      local(r);
    }
  });
}

/// x, y: [L, E]. A float32 result holds the exponentials until their sum is known. That would round a bfloat16 result
/// twice, so its exponentials are computed twice instead.
template <typename Pointer>
void softmax(const KernelCall& call) {
  constexpr bool keeps = std::is_same_v<Pointer, float*>;
  const auto x = reals<Pointer>(call.inputs[0]);
  const auto y = reals<Pointer>(call.outputs[0]);
  const std::int64_t width = columns(call.inputs[0]);
  for_each_softmax_row(call, [=](std::int64_t r) {
    const auto from = x + r * width;
    const auto to = y + r * width;
    const float max = largest_of(width, [=](auto at) { return load(from, at); });
    const float sum = sum_of(width, [=](auto at) {
      const vec e = exp(load(from, at) - max);
      if constexpr (keeps) {
        store(to, at, e);
      }
      return e;
    });
    const float inverse = 1.0F / sum;
    vectors(0, width, [=](auto at) {
      const vec e = keeps ? load(to, at) : exp(load(from, at) - max);
      store(to, at, e * inverse);
    });
  });
}

/// x, y: [L, E]   y = x - max - log(sum of exp(x - max))
template <typename Pointer>
void log_softmax(const KernelCall& call) {
  const auto x = reals<Pointer>(call.inputs[0]);
  const auto y = reals<Pointer>(call.outputs[0]);
  const std::int64_t width = columns(call.inputs[0]);
  for_each_softmax_row(call, [=](std::int64_t r) {
    const auto from = x + r * width;
    const auto to = y + r * width;
    const float max = largest_of(width, [=](auto at) { return load(from, at); });
    const float log_sum = __builtin_logf(sum_of(width, [=](auto at) { return exp(load(from, at) - max); }));
    vectors(0, width, [=](auto at) { store(to, at, load(from, at) - max - log_sum); });
  });
}

/// dy, y, dx: [L, E]   dx = y (dy - sum of dy y)
template <typename Pointer>
void softmax_gradient(const KernelCall& call) {
  const auto dy = reals<Pointer>(call.inputs[0]);
  const auto y = reals<Pointer>(call.inputs[1]);
  const auto dx = reals<Pointer>(call.outputs[0]);
  const std::int64_t width = columns(call.inputs[0]);
  for_each_softmax_row(call, [=](std::int64_t r) {
    const auto dy_row = dy + r * width;
    const auto y_row = y + r * width;
    const auto dx_row = dx + r * width;
    const float sum = sum_of(width, [=](auto at) { return load(dy_row, at) * load(y_row, at); });
    vectors(0, width, [=](auto at) { store(dx_row, at, load(y_row, at) * (load(dy_row, at) - sum)); });
  });
}

/// dy, y, dx: [L, E]   dx = dy - exp(y) sum of dy
template <typename Pointer>
void log_softmax_gradient(const KernelCall& call) {
  const auto dy = reals<Pointer>(call.inputs[0]);
  const auto y = reals<Pointer>(call.inputs[1]);
  const auto dx = reals<Pointer>(call.outputs[0]);
  const std::int64_t width = columns(call.inputs[0]);
  for_each_softmax_row(call, [=](std::int64_t r) {
    const auto dy_row = dy + r * width;
    const auto y_row = y + r * width;
    const auto dx_row = dx + r * width;
    const float sum = sum_of(width, [=](auto at) { return load(dy_row, at); });
    vectors(0, width, [=](auto at) { store(dx_row, at, load(dy_row, at) - exp(load(y_row, at)) * sum); });
  });
}

}  // namespace
}  // namespace shardrun::device::cpu::SHARDRUN_KERNEL_VARIANT

SHARDRUN_KERNELS(softmax, {"softmax", {.run = by_type<softmax<float*>, softmax<Reals>>}},
                 {"log_softmax", {.run = by_type<log_softmax<float*>, log_softmax<Reals>>}},
                 {"softmax_gradient", {.run = by_type<softmax_gradient<float*>, softmax_gradient<Reals>>}},
                 {"log_softmax_gradient", {.run = by_type<log_softmax_gradient<float*>, log_softmax_gradient<Reals>>}})
