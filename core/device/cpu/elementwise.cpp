#include "core/device/cpu/elementwise.h"

#include "core/device/cpu/vec_math.h"

namespace shardrun::device::cpu::SHARDRUN_KERNEL_VARIANT {
namespace {

/// a: [L, K...]   b: [K...]   y = a + b
void add_rows(const KernelCall& call) {
  const float* a = floats(call.inputs[0]);
  const float* b = floats(call.inputs[1]);
  float* y = floats(call.outputs[0]);
  const std::int64_t width = call.inputs[1].elements();
  const std::int64_t count = width == 0 ? 0 : call.inputs[0].elements() / width;
  call.threads.split(count, row_grain(width), [=](std::int64_t begin, std::int64_t end) {
    for (std::int64_t r = begin; r < end; ++r) {
      vectors(0, width, [=](auto at) { store(y + r * width, at, load(a + r * width, at) + load(b, at)); });
    }
  });
}

void add(const KernelCall& call) {
  const std::int64_t size = call.inputs[0].elements();
  if (call.inputs[1].elements() == size) {
    map_pairs(call, [](vec a, vec b) { return a + b; });
  } else if (call.inputs[1].elements() == 1) {
    const float b = *floats(call.inputs[1]);
    map(call, [=](vec a) { return a + b; });
  } else {
    add_rows(call);
  }
}

/// y = ((x0 + x1) + x2) + …
void add_n(const KernelCall& call) {
  const TensorView* inputs = call.inputs.data();
  const std::size_t terms = call.inputs.size();
  float* y = floats(call.outputs[0]);
  for_each_vector(call, call.outputs[0].elements(), [=](auto at) {
    vec total = load(floats(inputs[0]), at);
    for (std::size_t i = 1; i < terms; ++i) {
      total += load(floats(inputs[i]), at);
    }
    store(y, at, total);
  });
}

void multiply(const KernelCall& call) {
  map_pairs(call, [](vec a, vec b) { return a * b; });
}

void negate(const KernelCall& call) {
  map(call, [](vec x) { return -x; });
}

/// sin and cos: `quarter_turns` is 0 or 1. Stretches with angles past the range of the fast reduction, or NaN, go
/// through the C library.
template <std::uint32_t quarter_turns>
void angle(const KernelCall& call) {
  constexpr std::int64_t stretch = 256;
  const float* x = floats(call.inputs[0]);
  float* y = floats(call.outputs[0]);
  call.threads.split(call.inputs[0].elements(), grain, [=](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; i += stretch) {
      const std::int64_t stop = i + stretch < end ? i + stretch : end;
      bool small = true;
      for (std::int64_t k = i; k < stop; ++k) {
        small &= __builtin_fabsf(x[k]) <= largest_angle;
      }
      if (small) {
        vectors(i, stop, [=](auto at) { store(y, at, sin_cos(load(x, at), quarter_turns)); });
        continue;
      }
      for (std::int64_t k = i; k < stop; ++k) {
        y[k] = quarter_turns == 0 ? __builtin_sinf(x[k]) : __builtin_cosf(x[k]);
      }
    }
  });
}

void constant(const KernelCall& call) { *floats(call.outputs[0]) = static_cast<float>(call.attributes.real("value")); }

/// x -> y = x, or y += x
void copy(const KernelCall& call) {
  if (call.accumulate) {
    const float* x = floats(call.inputs[0]);
    float* y = floats(call.outputs[0]);
    for_each_vector(call, call.inputs[0].elements(), [=](auto at) { store(y, at, load(y, at) + load(x, at)); });
  } else if (call.inputs[0].data != call.outputs[0].data) {
    __builtin_memcpy(call.outputs[0].data, call.inputs[0].data,
                     static_cast<std::size_t>(call.inputs[0].elements()) * sizeof(float));
  }
}

/// s: []   like: any shape   y = s * scale everywhere
void broadcast_scalar(const KernelCall& call) {
  const vec value = splat(*floats(call.inputs[0]) * static_cast<float>(call.attributes.real("scale")));
  float* y = floats(call.outputs[0]);
  for_each_vector(call, call.outputs[0].elements(), [=](auto at) { store(y, at, value); });
}

}  // namespace
}  // namespace shardrun::device::cpu::SHARDRUN_KERNEL_VARIANT

SHARDRUN_KERNELS(elementwise, {"add", {.run = add}}, {"add_n", {.run = add_n}}, {"multiply", {.run = multiply}},
                 {"negate", {.run = negate}}, {"sin", {.run = angle<0>}}, {"cos", {.run = angle<1>}},
                 {"constant", {.run = constant}}, {"copy", {.run = copy}},
                 {"broadcast_scalar", {.run = broadcast_scalar}})
