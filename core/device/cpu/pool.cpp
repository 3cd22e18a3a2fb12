#include <cmath>
#include <memory>

#include "core/device/cpu/views.h"
#include "core/device/taps.h"

namespace shardrun::device::cpu {
namespace {

using namespace SHARDRUN_KERNEL_VARIANT;

using Slidings = std::vector<graph::Sliding>;

/// A pool of one call: lines of the result, and where the taps of their elements are.
struct Lines {
  Lines(const std::array<Taps, 2>& of, const TensorView& operand, const TensorView& result, std::size_t dimensions)
      : down(of[0]), across(of[1]), from(operand, dimensions), to(result, dimensions) {
    if (dimensions == 2) {
      first_row = result.origin[result.rank - 2];
      operand_row = operand.origin[operand.rank - 2];
    }
  }

  /// Calls body(element of the result, row, column, first element of the operand's plane) for each of its elements.
  template <typename Body>
  void run(Threads& threads, const Body& body) const {
    const std::int64_t work = to.columns * down.size * across.size;
    threads.split(to.count * to.rows, row_grain(work), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t line = begin; line < end; ++line) {
        for (std::int64_t column = 0; column < to.columns; ++column) {
          body(line * to.columns + column, line % to.rows, column, line / to.rows * from.size());
        }
      }
    });
  }

  /// Calls body(element of the operand) for each tap of one element of the result.
  template <typename Body>
  void for_each_tap(std::int64_t row, std::int64_t column, const Body& body) const {
    for (std::int64_t k = 0; k < down.size; ++k) {
      const std::int64_t i = down.at(row, k);
      for (std::int64_t l = 0; i >= 0 && l < across.size; ++l) {
        const std::int64_t j = across.at(column, l);
        if (j >= 0) {
          body(i, j);
        }
      }
    }
  }

  Taps down;
  Taps across;
  Planes from;
  Planes to;
  std::int64_t first_row = 0;    ///< of the result
  std::int64_t operand_row = 0;  ///< the operand's first
};

/// What an instruction keeps.
const Slidings& slidings_of(const KernelCall& call) { return *static_cast<const Slidings*>(call.prepared); }

Lines forward_lines(const KernelCall& call) {
  const Slidings& slidings = slidings_of(call);
  return {taps_of(slidings, call.inputs[0], call.outputs[0]), call.inputs[0], call.outputs[0], slidings.size()};
}

Lines backward_lines(const KernelCall& call) {
  const Slidings& slidings = slidings_of(call);
  return {transposed_taps(slidings, call.inputs[0], call.outputs[0]), call.inputs[0], call.outputs[0], slidings.size()};
}

/// The first of equal elements counts, and a NaN is larger than all.
void max_pool(const KernelCall& call) {
  const Lines lines = forward_lines(call);
  const auto x = reals<Reals>(call.inputs[0]);
  const auto y = reals<Reals>(call.outputs[0]);
  std::int32_t* const numbers = integers(call.outputs[1]);
  const TensorView& view = call.inputs[0];
  const std::int64_t width = view.global[view.rank - 1];
  const std::int64_t first = lines.operand_row * width + view.origin[view.rank - 1];
  lines.run(call.threads, [&](std::int64_t element, std::int64_t row, std::int64_t column, std::int64_t plane) {
    float largest = 0;
    std::int64_t number = -1;
    lines.for_each_tap(row, column, [&](std::int64_t i, std::int64_t j) {
      const float value = get(x, plane + i * lines.from.columns + j);
      if (number < 0 || value > largest || (std::isnan(value) && !std::isnan(largest))) {
        largest = value;
        number = first + i * width + j;
      }
    });
    put(y, element, largest);
    numbers[element] = static_cast<std::int32_t>(number);
  });
}

/// dx[j] = sum of dy[i] over the windows i whose largest element is j.
void max_pool_gradient(const KernelCall& call) {
  const Lines lines = backward_lines(call);
  const auto dy = reals<Reals>(call.inputs[0]);
  const auto dx = reals<Reals>(call.outputs[0]);
  const std::int32_t* const numbers = integers(call.inputs[1]);
  const TensorView& view = call.outputs[0];
  const std::int64_t width = view.global[view.rank - 1];
  const std::int64_t first = lines.first_row * width + view.origin[view.rank - 1];
  lines.run(call.threads, [&](std::int64_t element, std::int64_t row, std::int64_t column, std::int64_t plane) {
    double sum = 0;
    lines.for_each_tap(row, column, [&](std::int64_t i, std::int64_t j) {
      const std::int64_t from = plane + i * lines.from.columns + j;
      sum += numbers[from] == first + row * width + column ? static_cast<double>(get(dy, from)) : 0;
    });
    put(dx, element, static_cast<float>(sum));
  });
}

void average_pool(const KernelCall& call) {
  const Lines lines = forward_lines(call);
  const TapCounts counts(slidings_of(call), call.outputs[0], call.inputs[0], call.attributes);
  const auto x = reals<Reals>(call.inputs[0]);
  const auto y = reals<Reals>(call.outputs[0]);
  lines.run(call.threads, [&](std::int64_t element, std::int64_t row, std::int64_t column, std::int64_t plane) {
    double sum = 0;
    lines.for_each_tap(row, column, [&](std::int64_t i, std::int64_t j) {
      sum += static_cast<double>(get(x, plane + i * lines.from.columns + j));
    });
    put(y, element, static_cast<float>(sum / static_cast<double>(counts.at(row, column))));
  });
}

/// dx[j] = sum of dy[i] / (elements that count in window i) over the windows i that have j.
void average_pool_gradient(const KernelCall& call) {
  const Lines lines = backward_lines(call);
  const TapCounts counts(slidings_of(call), call.inputs[0], call.outputs[0], call.attributes);
  const auto dy = reals<Reals>(call.inputs[0]);
  const auto dx = reals<Reals>(call.outputs[0]);
  lines.run(call.threads, [&](std::int64_t element, std::int64_t row, std::int64_t column, std::int64_t plane) {
    double sum = 0;
    lines.for_each_tap(row, column, [&](std::int64_t i, std::int64_t j) {
      sum += static_cast<double>(get(dy, plane + i * lines.from.columns + j)) / static_cast<double>(counts.at(i, j));
    });
    put(dx, element, static_cast<float>(sum));
  });
}

std::shared_ptr<void> prepare_pool(const graph::OpShape& shape) {
  return std::make_shared<Slidings>(sliding_of(shape.attributes, shape.attributes.integers("size")));
}

const RegisterKernel register_max("cpu", "max_pool", {.run = max_pool, .prepare = prepare_pool});
const RegisterKernel register_max_gradient("cpu", "max_pool_gradient",
                                           {.run = max_pool_gradient, .prepare = prepare_pool});
const RegisterKernel register_average("cpu", "average_pool", {.run = average_pool, .prepare = prepare_pool});
const RegisterKernel register_average_gradient("cpu", "average_pool_gradient",
                                               {.run = average_pool_gradient, .prepare = prepare_pool});

}  // namespace
}  // namespace shardrun::device::cpu
