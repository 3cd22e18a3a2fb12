#include <array>
#include <cmath>
#include <memory>
#include <vector>

#include "core/device/cpu/columns.h"
#include "core/device/cpu/views.h"
#include "core/device/taps.h"

namespace shardrun::device::cpu {
namespace {

using namespace SHARDRUN_KERNEL_VARIANT;

/// For each index of a result's shard, the indices of the operand's shard that it reads along one dimension.
using Ranges = std::vector<RowRange>;

/// What an instruction keeps between calls: how the pool slides and, after the first call, which elements of the shards
/// the pool reads.
struct Pool {
  std::vector<graph::Sliding> slidings;
  std::array<Ranges, 2> ranges = {};  ///< of rows and columns; a pool of one dimension has one row
};

Ranges ranges_of(const Window& window, const TensorView& operand, const TensorView& result, std::size_t from_end) {
  const auto from = static_cast<std::uint32_t>(operand.rank - from_end);
  const auto to = static_cast<std::uint32_t>(result.rank - from_end);
  require_held(window, operand, result, from, to);
  Ranges ranges;
  for (std::int64_t i = result.origin[to]; i < result.origin[to] + result.shape[to]; ++i) {
    const auto [begin, end] = window.reads(i, i + 1, operand.global[from]);
    ranges.push_back({begin - operand.origin[from], end - operand.origin[from]});
  }
  return ranges;
}

/// The elements of a call's result, and the elements of the operand that each of them reads.
struct Lines {
  Lines(const KernelCall& call, bool backward) {
    auto& pool = *static_cast<Pool*>(call.prepared);
    const std::size_t count = pool.slidings.size();
    if (pool.ranges[1].empty()) {
      pool.ranges[0] = {{0, 1}};
      for (std::size_t d = 0; d < count; ++d) {
        const Window window = pool.slidings[d].window();
        pool.ranges[2 - count + d] =
            ranges_of(backward ? window.transposed() : window, call.inputs[0], call.outputs[0], count - d);
      }
    }
    rows = pool.ranges[0].data();
    columns = pool.ranges[1].data();
    const Planes operand(call.inputs[0], count);
    const Planes result(call.outputs[0], count);
    width = operand.columns;
    plane = operand.size();
    to = {result.count, result.rows, result.columns};
  }

  /// For each element, calls body(element of the result, its row and column, first element of the operand's plane).
  template <typename Body>
  void run(Threads& threads, const Body& body) const {
    constexpr std::int64_t work = 8;  // rough cost of one element
    threads.split(to[0] * to[1], row_grain(to[2] * work), [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t line = begin; line < end; ++line) {
        for (std::int64_t column = 0; column < to[2]; ++column) {
          body(line * to[2] + column, line % to[1], column, line / to[1] * plane);
        }
      }
    });
  }

  /// Calls body with the row and column of each operand element that this element of the result reads.
  template <typename Body>
  SHARDRUN_INLINE void for_each_read(std::int64_t row, std::int64_t column, const Body& body) const {
    const RowRange across = columns[column];
    for (std::int64_t i = rows[row].begin; i < rows[row].end; ++i) {
      for (std::int64_t j = across.begin; j < across.end; ++j) {
        body(i, j);
      }
    }
  }

  const RowRange* rows;
  const RowRange* columns;
  std::int64_t width;              ///< row length of the operand's planes
  std::int64_t plane;              ///< elements of one of the operand's planes
  std::array<std::int64_t, 3> to;  ///< planes, rows and columns of the result
};

/// The number of the first element of a shard's planes, row-major over the last dimensions of the whole tensor.
std::int64_t first_number(const TensorView& view, const KernelCall& call) {
  const bool is_plane = static_cast<const Pool*>(call.prepared)->slidings.size() == 2;
  const std::int64_t row = is_plane ? view.origin[view.rank - 2] : 0;
  return row * view.global[view.rank - 1] + view.origin[view.rank - 1];
}

/// outputs: the largest element and its number. The first of equal elements counts. A NaN is larger than all numbers.
template <typename Pointer>
void max_pool(const KernelCall& call) {
  const Lines lines(call, false);
  const auto x = reals<Pointer>(call.inputs[0]);
  const auto y = reals<Pointer>(call.outputs[0]);
  std::int32_t* const numbers = integers(call.outputs[1]);
  const std::int64_t first = first_number(call.inputs[0], call);
  const std::int64_t whole_width = call.inputs[0].global[call.inputs[0].rank - 1];
  lines.run(call.threads, [&](std::int64_t element, std::int64_t row, std::int64_t column, std::int64_t plane) {
    float largest = 0;
    std::int64_t number = -1;
    lines.for_each_read(row, column, [&](std::int64_t i, std::int64_t j) {
      const float value = get(x, plane + i * lines.width + j);
      if (number < 0 || value > largest || (std::isnan(value) && !std::isnan(largest))) {
        largest = value;
        number = first + i * whole_width + j;
      }
    });
    put(y, element, largest);
    numbers[element] = static_cast<std::int32_t>(number);
  });
}

/// dx[j] = sum of dy[i] over the windows i whose largest element is j.
template <typename Pointer>
void max_pool_gradient(const KernelCall& call) {
  const Lines lines(call, true);
  const auto dy = reals<Pointer>(call.inputs[0]);
  const auto dx = reals<Pointer>(call.outputs[0]);
  const std::int32_t* const numbers = integers(call.inputs[1]);
  const std::int64_t first = first_number(call.outputs[0], call);
  const std::int64_t whole_width = call.outputs[0].global[call.outputs[0].rank - 1];
  lines.run(call.threads, [&](std::int64_t element, std::int64_t row, std::int64_t column, std::int64_t plane) {
    const std::int64_t number = first + row * whole_width + column;
    double sum = 0;
    lines.for_each_read(row, column, [&](std::int64_t i, std::int64_t j) {
      const std::int64_t from = plane + i * lines.width + j;
      if (numbers[from] == number) {
        sum += static_cast<double>(get(dy, from));
      }
    });
    put(dx, element, static_cast<float>(sum));
  });
}

TapCounts counts_of(const KernelCall& call, const TensorView& pooled, const TensorView& whole) {
  return {static_cast<const Pool*>(call.prepared)->slidings, pooled, whole, call.attributes};
}

template <typename Pointer>
void average_pool(const KernelCall& call) {
  const Lines lines(call, false);
  const TapCounts counts = counts_of(call, call.outputs[0], call.inputs[0]);
  const auto x = reals<Pointer>(call.inputs[0]);
  const auto y = reals<Pointer>(call.outputs[0]);
  lines.run(call.threads, [&](std::int64_t element, std::int64_t row, std::int64_t column, std::int64_t plane) {
    double sum = 0;
    lines.for_each_read(row, column, [&](std::int64_t i, std::int64_t j) {
      sum += static_cast<double>(get(x, plane + i * lines.width + j));
    });
    put(y, element, static_cast<float>(sum / static_cast<double>(counts.at(row, column))));
  });
}

/// dx[j] = sum of dy[i] / (elements that count in window i) over the windows i that contain j.
template <typename Pointer>
void average_pool_gradient(const KernelCall& call) {
  const Lines lines(call, true);
  const TapCounts counts = counts_of(call, call.inputs[0], call.outputs[0]);
  const auto dy = reals<Pointer>(call.inputs[0]);
  const auto dx = reals<Pointer>(call.outputs[0]);
  lines.run(call.threads, [&](std::int64_t element, std::int64_t row, std::int64_t column, std::int64_t plane) {
    double sum = 0;
    lines.for_each_read(row, column, [&](std::int64_t i, std::int64_t j) {
      sum += static_cast<double>(get(dy, plane + i * lines.width + j)) / static_cast<double>(counts.at(i, j));
    });
    put(dx, element, static_cast<float>(sum));
  });
}

std::shared_ptr<void> prepare_pool(const graph::OpShape& shape) {
  return std::make_shared<Pool>(Pool{sliding_of(shape.attributes, shape.attributes.integers("size"))});
}

template <void (*on_floats)(const KernelCall&), void (*on_reals)(const KernelCall&)>
Kernel pool_kernel() {
  return {.run = by_type<on_floats, on_reals>, .prepare = prepare_pool};
}

const RegisterKernel register_max("cpu", "max_pool", pool_kernel<max_pool<float*>, max_pool<Reals>>());
const RegisterKernel register_max_gradient("cpu", "max_pool_gradient",
                                           pool_kernel<max_pool_gradient<float*>, max_pool_gradient<Reals>>());
const RegisterKernel register_average("cpu", "average_pool", pool_kernel<average_pool<float*>, average_pool<Reals>>());
const RegisterKernel register_average_gradient(
    "cpu", "average_pool_gradient", pool_kernel<average_pool_gradient<float*>, average_pool_gradient<Reals>>());

}  // namespace
}  // namespace shardrun::device::cpu
