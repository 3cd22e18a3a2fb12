#pragma once

#include <utility>

#include "core/device/cpu/vec.h"
#include "core/device/cpu/views.h"

namespace shardrun::device::cpu::SHARDRUN_KERNEL_VARIANT {

/// Calls body(at) for every vector of [0, size), on all threads. What a body captures by value stays in registers.
template <typename Body>
void for_each_vector(const KernelCall& call, std::int64_t size, const Body& body) {
  call.threads.split(size, grain, [&](std::int64_t begin, std::int64_t end) {
    const Body local = body;
    vectors(begin, end, local);
  });
}

/// y = function(x…) for `count` consecutive elements of each.
template <typename Function, typename Pointer, typename... Pointers>
void map_run(const Function& function, std::int64_t count, Pointer y, Pointers... x) {
  const Function local = function;
  vectors(0, count, [=](auto at) { store(y, at, local(load(x, at)...)); });
}

/// Operands with fewer than `shortest_run` elements are repeated in a buffer, so that each run of consecutive elements
/// has at least that length.
inline constexpr std::int64_t shortest_run = 256;
inline constexpr std::int64_t buffer_size = 2 * shortest_run;

inline std::int64_t repeated_length(std::int64_t elements) {
  return elements >= shortest_run ? elements : elements * (buffer_size / elements);
}

[[nodiscard]] inline float* from_floats(float* floats, float*) { return floats; }
[[nodiscard]] inline Reals from_floats(float* floats, Reals) { return {reinterpret_cast<std::byte*>(floats), false}; }

/// An operand of `length` elements that starts again from its first element after its last.
template <typename Pointer>
struct Cycle {
  Cycle(const TensorView& operand, std::int64_t size, std::int64_t begin, float* buffer)
      : data(reals<Pointer>(operand)), length(operand.elements()) {
    const std::int64_t elements = length;
    if (elements != size && elements < shortest_run) {
      length = repeated_length(elements);
      for (std::int64_t i = 0; i < length; ++i) {
        buffer[i] = get(data, i % elements);
      }
      data = from_floats(buffer, data);
    }
    place = begin % length;
  }
  void pass(std::int64_t count) { place = place + count == length ? 0 : place + count; }

  Pointer data;
  std::int64_t length;
  std::int64_t place;
};

/// y = function(x…), where x can lack leading dimensions of y. Threads do not change where runs of elements begin.
template <typename Pointer, typename Function, std::size_t... i>
void map_cycles(const KernelCall& call, const Function& function, std::index_sequence<i...>) {
  const auto y = reals<Pointer>(call.outputs[0]);
  const std::int64_t size = call.outputs[0].elements();
  std::int64_t unit = 1;
  const std::int64_t elements[] = {call.inputs[i].elements()...};
  for (const std::int64_t count : elements) {
    const std::int64_t length = count == size ? 1 : repeated_length(count);
    unit = length > unit ? length : unit;
  }
  call.threads.split(size, (grain / unit + 1) * unit, [&](std::int64_t begin, std::int64_t end) {
    float buffers[sizeof...(i)][buffer_size];
    Cycle<Pointer> cycles[] = {{call.inputs[i], size, begin, buffers[i]}...};
    for (std::int64_t at = begin; at < end;) {
      std::int64_t count = end - at;
      ((count = cycles[i].length - cycles[i].place < count ? cycles[i].length - cycles[i].place : count), ...);
      map_run(function, count, y + at, (cycles[i].data + cycles[i].place)...);
      (cycles[i].pass(count), ...);
      at += count;
    }
  });
}

template <typename Pointer, typename Function, std::size_t... i>
void map_as(const KernelCall& call, const Function& function, std::index_sequence<i...> operands) {
  const std::int64_t size = call.outputs[0].elements();
  if (((call.inputs[i].elements() != size) || ...)) {
    map_cycles<Pointer>(call, function, operands);
    return;
  }
  call.threads.split(size, grain, [&](std::int64_t begin, std::int64_t end) {
    map_run(function, end - begin, reals<Pointer>(call.outputs[0]) + begin,
            (reals<Pointer>(call.inputs[i]) + begin)...);
  });
}

/// outputs[0] = function(inputs[0], …) of the first `count` operands, element by element. An operand can lack leading
/// dimensions of the result. An operand that lacks none can be the same memory as the result.
template <std::size_t count, typename Function>
void map(const KernelCall& call, const Function& function) {
  constexpr std::make_index_sequence<count> operands;
  has_bfloats(call) ? map_as<Reals>(call, function, operands) : map_as<float*>(call, function, operands);
}

}  // namespace shardrun::device::cpu::SHARDRUN_KERNEL_VARIANT
