#include <vector>

#include "core/device/cuda/launch.h"
#include "core/device/cuda/values.h"
#include "core/device/taps.h"

// Pools over the last one or two dimensions. A thread computes one element; neighbours read neighbouring windows.

namespace shardrun::device::cuda {
namespace {

/// Finds the elements of the operand that an element of the result reads.
struct Pool {
  Taps down;
  Taps across;
  std::int64_t from_size;     ///< elements of a plane of the operand
  std::int64_t from_columns;  ///< elements of a row of the operand
  std::int64_t to_size;
  std::int64_t to_columns;

  /// Calls use(place in the operand's plane, row, column) for each tap within the operand, row by row.
  template <typename Use>
  SHARDRUN_ON_DEVICE void for_each_tap(std::int64_t element, const Use& use) const {
    const std::int64_t row = element % to_size / to_columns;
    const std::int64_t column = element % to_columns;
    for (std::int64_t k = 0; k < down.size; ++k) {
      const std::int64_t i = down.at(row, k);
      for (std::int64_t l = 0; l < across.size && i >= 0; ++l) {
        const std::int64_t j = across.at(column, l);
        if (j >= 0) {
          use(element / to_size * from_size + i * from_columns + j, i, j);
        }
      }
    }
  }
};

std::vector<graph::Sliding> slidings_of(const KernelCall& call) {
  return graph::sliding_of(call.attributes, call.attributes.integers("size"));
}

Pool pool_of(const std::array<Taps, 2>& taps, const TensorView& from, const TensorView& to, std::size_t dimensions) {
  const Planes of_from(from, dimensions);
  const Planes of_to(to, dimensions);
  return {taps[0], taps[1], of_from.size(), of_from.columns, of_to.size(), of_to.columns};
}

/// Computes the row-major index of an element over the last dimensions of the whole tensor.
struct Numbers {
  Numbers(const TensorView& part, std::size_t dimensions)
      : first_row(dimensions == 2 ? part.origin[part.rank - 2] : 0),
        first_column(part.origin[part.rank - 1]),
        width(part.global[part.rank - 1]) {}
  [[nodiscard]] SHARDRUN_ON_DEVICE std::int64_t of(std::int64_t row, std::int64_t column) const {
    return (first_row + row) * width + first_column + column;
  }

  std::int64_t first_row;
  std::int64_t first_column;
  std::int64_t width;
};

/// y[i] = the largest x[j] of window i, and the number of this j. Of equal elements, the first is the largest. A NaN is
/// larger than all numbers.
struct MaxPool {
  Pool pool;
  Numbers numbers;
  Reals x;
  Reals y;
  std::int32_t* chosen;

  SHARDRUN_ON_DEVICE void operator()(std::int64_t element) const {
    float largest = 0;
    std::int64_t number = -1;
    pool.for_each_tap(element, [&](std::int64_t place, std::int64_t row, std::int64_t column) {
      const float value = x.get(place);
      if (number < 0 || value > largest || (value != value && largest == largest)) {
        largest = value;
        number = numbers.of(row, column);
      }
    });
    y.set(element, largest);
    chosen[element] = static_cast<std::int32_t>(number);
  }
};

void max_pool(const KernelCall& call) {
  const TensorView& x = call.inputs[0];
  const std::vector<graph::Sliding> slidings = slidings_of(call);
  for_each(call, call.outputs[0].elements(),
           MaxPool{pool_of(taps_of(slidings, x, call.outputs[0]), x, call.outputs[0], slidings.size()),
                   Numbers(x, slidings.size()), reals(x), reals(call.outputs[0]), integers(call.outputs[1])});
}

/// dx[j] = sum of dy[i] over the windows i whose largest element is j.
struct MaxPoolGradient {
  Pool pool;
  Numbers numbers;
  Reals dy;
  const std::int32_t* chosen;
  Reals dx;

  SHARDRUN_ON_DEVICE void operator()(std::int64_t element) const {
    const std::int64_t number = numbers.of(element % pool.to_size / pool.to_columns, element % pool.to_columns);
    float sum = 0;
    pool.for_each_tap(element, [&](std::int64_t place, std::int64_t, std::int64_t) {
      sum += chosen[place] == number ? dy.get(place) : 0.0F;
    });
    dx.set(element, sum);
  }
};

void max_pool_gradient(const KernelCall& call) {
  const TensorView& dy = call.inputs[0];
  const TensorView& dx = call.outputs[0];
  const std::vector<graph::Sliding> slidings = slidings_of(call);
  for_each(call, dx.elements(),
           MaxPoolGradient{pool_of(transposed_taps(slidings, dy, dx), dy, dx, slidings.size()),
                           Numbers(dx, slidings.size()), reals(dy), integers(call.inputs[1]), reals(dx)});
}

/// y[i] = the mean of x over window i.
struct AveragePool {
  Pool pool;
  TapCounts counts;
  Reals x;
  Reals y;

  SHARDRUN_ON_DEVICE void operator()(std::int64_t element) const {
    float sum = 0;
    pool.for_each_tap(element, [&](std::int64_t place, std::int64_t, std::int64_t) { sum += x.get(place); });
    y.set(element,
          sum / static_cast<float>(counts.at(element % pool.to_size / pool.to_columns, element % pool.to_columns)));
  }
};

void average_pool(const KernelCall& call) {
  const TensorView& x = call.inputs[0];
  const TensorView& y = call.outputs[0];
  const std::vector<graph::Sliding> slidings = slidings_of(call);
  for_each(call, y.elements(),
           AveragePool{pool_of(taps_of(slidings, x, y), x, y, slidings.size()),
                       TapCounts(slidings, y, x, call.attributes), reals(x), reals(y)});
}

/// dx[j] = sum of dy[i] / (elements that count in window i) over the windows i that contain j.
struct AveragePoolGradient {
  Pool pool;
  TapCounts counts;
  Reals dy;
  Reals dx;

  SHARDRUN_ON_DEVICE void operator()(std::int64_t element) const {
    float sum = 0;
    pool.for_each_tap(element, [&](std::int64_t place, std::int64_t row, std::int64_t column) {
      sum += dy.get(place) / static_cast<float>(counts.at(row, column));
    });
    dx.set(element, sum);
  }
};

void average_pool_gradient(const KernelCall& call) {
  const TensorView& dy = call.inputs[0];
  const TensorView& dx = call.outputs[0];
  const std::vector<graph::Sliding> slidings = slidings_of(call);
  for_each(call, dx.elements(),
           AveragePoolGradient{pool_of(transposed_taps(slidings, dy, dx), dy, dx, slidings.size()),
                               TapCounts(slidings, dy, dx, call.attributes), reals(dy), reals(dx)});
}

const AddKernels pools({{"max_pool", {.run = max_pool}},
                        {"max_pool_gradient", {.run = max_pool_gradient}},
                        {"average_pool", {.run = average_pool}},
                        {"average_pool_gradient", {.run = average_pool_gradient}}});

}  // namespace
}  // namespace shardrun::device::cuda
