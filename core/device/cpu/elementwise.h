#pragma once

#include "core/device/cpu/vec.h"
#include "core/device/cpu/views.h"

namespace shardrun::device::cpu::SHARDRUN_KERNEL_VARIANT {

/// Calls body(at) for every vector of [0, size), over the threads. The body captures by value, so that what it
/// captures stays in registers.
template <typename Body>
void for_each_vector(const KernelCall& call, std::int64_t size, const Body& body) {
  call.threads.split(size, grain, [&](std::int64_t begin, std::int64_t end) {
    const Body local = body;
    vectors(begin, end, local);
  });
}

template <typename Pointer, typename Function>
void map_as(const KernelCall& call, const Function& function) {
  const auto x = reals<Pointer>(call.inputs[0]);
  const auto y = reals<Pointer>(call.outputs[0]);
  for_each_vector(call, call.inputs[0].elements(), [=](auto at) { store(y, at, function(load(x, at))); });
}

/// outputs[0] = function(inputs[0]), element by element; they may be the same memory.
template <typename Function>
void map(const KernelCall& call, const Function& function) {
  has_bfloats(call) ? map_as<Reals>(call, function) : map_as<float*>(call, function);
}

template <typename Pointer, typename Function>
void map_pairs_as(const KernelCall& call, const Function& function) {
  const auto a = reals<Pointer>(call.inputs[0]);
  const auto b = reals<Pointer>(call.inputs[1]);
  const auto y = reals<Pointer>(call.outputs[0]);
  for_each_vector(call, call.inputs[0].elements(), [=](auto at) { store(y, at, function(load(a, at), load(b, at))); });
}

/// outputs[0] = function(inputs[0], inputs[1]), element by element; either may be the same memory.
template <typename Function>
void map_pairs(const KernelCall& call, const Function& function) {
  has_bfloats(call) ? map_pairs_as<Reals>(call, function) : map_pairs_as<float*>(call, function);
}

}  // namespace shardrun::device::cpu::SHARDRUN_KERNEL_VARIANT
