#include "core/device/cpu/elementwise.h"

#include "core/device/elements.h"

namespace shardrun::device::cpu::SHARDRUN_KERNEL_VARIANT {
namespace {

/// y = ((x0 + x1) + x2) + …
template <typename Pointer>
void add_n(const KernelCall& call) {
  const TensorView* inputs = call.inputs.data();
  const std::size_t terms = call.inputs.size();
  const auto y = reals<Pointer>(call.outputs[0]);
  for_each_vector(call, call.outputs[0].elements(), [=](auto at) {
    vec total = load(reals<Pointer>(inputs[0]), at);
    for (std::size_t i = 1; i < terms; ++i) {
      total += load(reals<Pointer>(inputs[i]), at);
    }
    store(y, at, total);
  });
}

void constant(const KernelCall& call) {
  put(reals<Reals>(call.outputs[0]), 0, static_cast<float>(call.attributes.real("value")));
}

template <typename Pointer>
void add_to_result(const KernelCall& call) {
  const auto x = reals<Pointer>(call.inputs[0]);
  const auto y = reals<Pointer>(call.outputs[0]);
  for_each_vector(call, call.inputs[0].elements(), [=](auto at) { store(y, at, load(y, at) + load(x, at)); });
}

/// y = x, in the type of y. With `accumulate`, y += x.
void copy(const KernelCall& call) {
  const TensorView& x = call.inputs[0];
  const TensorView& y = call.outputs[0];
  if (call.accumulate) {
    by_type<add_to_result<float*>, add_to_result<Reals>>(call);
  } else if (x.dtype != y.dtype) {
    map<1>(call, [](vec v) { return v; });
  } else if (x.data != y.data) {
    __builtin_memcpy(y.data, x.data, x.bytes());
  }
}

/// Casts between any types, including float16 and integers.
void cast(const KernelCall& call) {
  const TensorView& x = call.inputs[0];
  const TensorView& y = call.outputs[0];
  const auto is_fast = [](graph::DType dtype) { return dtype == graph::DType::f32 || dtype == graph::DType::bf16; };
  if (is_fast(x.dtype) && is_fast(y.dtype)) {
    copy(call);
    return;
  }
  call.threads.split(x.elements(), grain, [&](std::int64_t begin, std::int64_t end) {
    constexpr std::int64_t stretch = 256;
    double values[stretch];
    for (std::int64_t i = begin; i < end; i += stretch) {
      const auto count = static_cast<std::size_t>(i + stretch < end ? stretch : end - i);
      read_elements(x, i, {values, count});
      write_elements(y, i, {values, count});
    }
  });
}

/// s: []   like: any shape   y = s * scale everywhere
template <typename Pointer>
void broadcast_scalar(const KernelCall& call) {
  const auto scale = static_cast<float>(call.attributes.real("scale"));
  const vec value = splat(get(reals<Reals>(call.inputs[0]), 0) * scale);
  const auto y = reals<Pointer>(call.outputs[0]);
  for_each_vector(call, call.outputs[0].elements(), [=](auto at) { store(y, at, value); });
}

}  // namespace
}  // namespace shardrun::device::cpu::SHARDRUN_KERNEL_VARIANT

SHARDRUN_KERNELS(elementwise, {"add_n", {.run = by_type<add_n<float*>, add_n<Reals>>}}, {"constant", {.run = constant}},
                 {"copy", {.run = copy}}, {"cast", {.run = cast}},
                 {"broadcast_scalar", {.run = by_type<broadcast_scalar<float*>, broadcast_scalar<Reals>>}})
