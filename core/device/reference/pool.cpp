#include <cmath>

#include "core/device/reference/views.h"
#include "core/device/taps.h"

namespace shardrun::device::reference {
namespace {

using graph::Sliding;

std::vector<Sliding> pool_slidings(const KernelCall& call) {
  return sliding_of(call.attributes, call.attributes.integers("size"));
}

/// y[i] = the largest x[j] of window i. The second result is the row-major index of this j over the last dimensions of
/// the whole x. The first of equal elements counts. A NaN is larger than all numbers.
void max_pool(const KernelCall& call) {
  const TensorView& view = call.inputs[0];
  const std::vector<Sliding> slidings = pool_slidings(call);
  const std::array<Taps, 2> taps = taps_of(slidings, view, call.outputs[0]);
  const Planes x(view, slidings.size());
  const Planes y(call.outputs[0], slidings.size());
  const std::int64_t first_row = slidings.size() == 2 ? view.origin[view.rank - 2] : 0;
  const std::int64_t first_column = view.origin[view.rank - 1];
  for_each(call, y.count * y.size(), taps[0].size * taps[1].size, [&](std::int64_t element) {
    const double* const plane = reals(view) + element / y.size() * x.size();
    double largest = 0;
    std::int64_t number = -1;
    for (std::int64_t k = 0; k < taps[0].size; ++k) {
      for (std::int64_t l = 0; l < taps[1].size; ++l) {
        const std::int64_t row = taps[0].at(element % y.size() / y.columns, k);
        const std::int64_t column = taps[1].at(element % y.columns, l);
        if (row < 0 || column < 0) {
          continue;
        }
        const double value = plane[row * x.columns + column];
        if (number < 0 || value > largest || (std::isnan(value) && !std::isnan(largest))) {
          largest = value;
          number = (first_row + row) * view.global[view.rank - 1] + first_column + column;
        }
      }
    }
    reals(call.outputs[0])[element] = largest;
    integers(call.outputs[1])[element] = static_cast<std::int32_t>(number);
  });
}

/// dx[j] = sum of dy[i] over the windows i whose largest element is j.
void max_pool_gradient(const KernelCall& call) {
  const TensorView& result = call.outputs[0];
  const std::vector<Sliding> slidings = pool_slidings(call);
  const std::array<Taps, 2> taps = transposed_taps(slidings, call.inputs[0], result);
  const Planes dy(call.inputs[0], slidings.size());
  const Planes dx(result, slidings.size());
  const std::int64_t first_row = slidings.size() == 2 ? result.origin[result.rank - 2] : 0;
  const std::int64_t first_column = result.origin[result.rank - 1];
  for_each(call, dx.count * dx.size(), taps[0].size * taps[1].size, [&](std::int64_t element) {
    const std::int64_t row = element % dx.size() / dx.columns;
    const std::int64_t column = element % dx.columns;
    const std::int64_t number = (first_row + row) * result.global[result.rank - 1] + first_column + column;
    double sum = 0;
    for (std::int64_t k = 0; k < taps[0].size; ++k) {
      for (std::int64_t l = 0; l < taps[1].size; ++l) {
        const std::int64_t i = taps[0].at(row, k);
        const std::int64_t j = taps[1].at(column, l);
        const std::int64_t from = element / dx.size() * dy.size() + i * dy.columns + j;
        if (i >= 0 && j >= 0 && integers(call.inputs[1])[from] == number) {
          sum += reals(call.inputs[0])[from];
        }
      }
    }
    reals(result)[element] = sum;
  });
}

/// y[i] = sum of x over window i / (elements that count in window i).
void average_pool(const KernelCall& call) {
  const std::vector<Sliding> slidings = pool_slidings(call);
  const std::array<Taps, 2> taps = taps_of(slidings, call.inputs[0], call.outputs[0]);
  const TapCounts counts(slidings, call.outputs[0], call.inputs[0], call.attributes);
  const Planes x(call.inputs[0], slidings.size());
  const Planes y(call.outputs[0], slidings.size());
  for_each(call, y.count * y.size(), taps[0].size * taps[1].size, [&](std::int64_t element) {
    const std::int64_t row = element % y.size() / y.columns;
    double sum = 0;
    for (std::int64_t k = 0; k < taps[0].size; ++k) {
      for (std::int64_t l = 0; l < taps[1].size; ++l) {
        const std::int64_t i = taps[0].at(row, k);
        const std::int64_t j = taps[1].at(element % y.columns, l);
        sum += i < 0 || j < 0 ? 0 : reals(call.inputs[0])[element / y.size() * x.size() + i * x.columns + j];
      }
    }
    reals(call.outputs[0])[element] = sum / static_cast<double>(counts.at(row, element % y.columns));
  });
}

/// dx[j] = sum of dy[i] / (elements that count in window i) over the windows i that contain j.
void average_pool_gradient(const KernelCall& call) {
  const std::vector<Sliding> slidings = pool_slidings(call);
  const std::array<Taps, 2> taps = transposed_taps(slidings, call.inputs[0], call.outputs[0]);
  const TapCounts counts(slidings, call.inputs[0], call.outputs[0], call.attributes);
  const Planes dy(call.inputs[0], slidings.size());
  const Planes dx(call.outputs[0], slidings.size());
  for_each(call, dx.count * dx.size(), taps[0].size * taps[1].size, [&](std::int64_t element) {
    double sum = 0;
    for (std::int64_t k = 0; k < taps[0].size; ++k) {
      for (std::int64_t l = 0; l < taps[1].size; ++l) {
        const std::int64_t i = taps[0].at(element % dx.size() / dx.columns, k);
        const std::int64_t j = taps[1].at(element % dx.columns, l);
        if (i >= 0 && j >= 0) {
          const double gradient = reals(call.inputs[0])[element / dx.size() * dy.size() + i * dy.columns + j];
          sum += gradient / static_cast<double>(counts.at(i, j));
        }
      }
    }
    reals(call.outputs[0])[element] = sum;
  });
}

const RegisterKernel register_max("reference", "max_pool", {.run = max_pool});
const RegisterKernel register_max_gradient("reference", "max_pool_gradient", {.run = max_pool_gradient});
const RegisterKernel register_average("reference", "average_pool", {.run = average_pool});
const RegisterKernel register_average_gradient("reference", "average_pool_gradient", {.run = average_pool_gradient});

}  // namespace
}  // namespace shardrun::device::reference
