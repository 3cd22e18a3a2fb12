#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

#include "core/device/cuda/launch.h"
#include "core/device/cuda/values.h"

namespace shardrun::device::cuda {

/// y[i] = function(x0[i], x1[i], …), `pack` elements a thread and once more for the rest.
template <int operands, typename Function>
struct MapPacks {
  Reals y;
  Reals x[operands];
  std::int64_t size;
  Function function;

  SHARDRUN_ON_DEVICE void operator()(std::int64_t number) const {
    const std::int64_t i = number * pack_size;
    if (i + pack_size <= size) {
      compute_pack(i, std::make_integer_sequence<int, operands>{});
      return;
    }
    for (std::int64_t j = i; j < size; ++j) {
      compute_one(j, std::make_integer_sequence<int, operands>{});
    }
  }

 private:
  template <int... k>
  SHARDRUN_ON_DEVICE void compute_pack(std::int64_t i, std::integer_sequence<int, k...>) const {
    const Pack<pack_size> of[] = {x[k].template get_pack<pack_size>(i)...};
    Pack<pack_size> results;
    for (int e = 0; e < pack_size; ++e) {
      results[e] = function(of[k][e]...);
    }
    y.set_pack(i, results);
  }
  template <int... k>
  SHARDRUN_ON_DEVICE void compute_one(std::int64_t i, std::integer_sequence<int, k...>) const {
    y.set(i, function(x[k].get(i)...));
  }
};

/// The same for operands that are read again from their start when their elements end.
template <int operands, typename Function>
struct MapRepeated {
  Reals y;
  Reals x[operands];
  std::int64_t lengths[operands];  ///< 0: as many elements as the result
  Function function;

  SHARDRUN_ON_DEVICE void operator()(std::int64_t i) const { compute(i, std::make_integer_sequence<int, operands>{}); }

 private:
  template <int... k>
  SHARDRUN_ON_DEVICE void compute(std::int64_t i, std::integer_sequence<int, k...>) const {
    y.set(i, function(x[k].get(place(i, lengths[k]))...));
  }
  /// A division of 32 bits takes a quarter of the time of one of 64.
  SHARDRUN_ON_DEVICE static std::int64_t place(std::int64_t i, std::int64_t length) {
    if (length == 0) {
      return i;
    }
    return (i | length) >> 32 == 0 ? static_cast<std::uint32_t>(i) % static_cast<std::uint32_t>(length) : i % length;
  }
};

/// outputs[0] = function(inputs[0], …) of the first operands, element by element. Operands may lack leading dimensions
/// of the result; others may be its memory. `function` is called on the device.
template <int operands, typename Function>
void map(const KernelCall& call, const Function& function) {
  const TensorView& y = call.outputs[0];
  const std::int64_t size = y.elements();
  MapRepeated<operands, Function> repeated = {.y = reals(y), .x = {}, .lengths = {}, .function = function};
  MapPacks<operands, Function> packs = {.y = reals(y), .x = {}, .size = size, .function = function};
  bool whole = is_aligned(y);
  for (int k = 0; k < operands; ++k) {
    const TensorView& x = call.inputs[static_cast<std::size_t>(k)];
    const bool has_all = x.elements() == size;
    repeated.x[k] = packs.x[k] = reals(x);
    repeated.lengths[k] = has_all ? 0 : x.elements();
    whole = whole && has_all && is_aligned(x);
  }
  if (whole) {
    for_each(call, (size + pack_size - 1) / pack_size, packs);
  } else {
    for_each(call, size, repeated);
  }
}

}  // namespace shardrun::device::cuda
