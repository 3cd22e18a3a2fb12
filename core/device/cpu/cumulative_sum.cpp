#include "core/device/cpu/vec.h"
#include "core/device/cpu/views.h"

namespace shardrun::device::cpu::SHARDRUN_KERNEL_VARIANT {
namespace {

/// Sums in double precision for one vector of columns.
struct ColumnSums {
  SHARDRUN_INLINE vec add(vec v) {
    halfvec halves[2];
    __builtin_memcpy(halves, &v, sizeof(v));
    for (int i = 0; i < 2; ++i) {
      sums[i] += __builtin_convertvector(halves[i], dvec);
      halves[i] = __builtin_convertvector(sums[i], halfvec);
    }
    __builtin_memcpy(&v, halves, sizeof(v));
    return v;
  }

  dvec sums[2] = {};
};

/// x, y: [K, N, C]. The elements of a column are `inner` apart. `step`: from one term to the next.
struct Columns {
  std::int64_t length;
  std::int64_t inner;
  std::int64_t first;
  std::int64_t step;
};

template <typename Pointer>
void sum_columns(Pointer x, Pointer y, const Columns& of, std::int64_t begin, std::int64_t end) {
  if (of.inner == 1) {
    double sum = 0;
    for (std::int64_t i = 0, at = of.first; i < of.length; ++i, at += of.step) {
      sum += static_cast<double>(get(x, at));
      put(y, at, static_cast<float>(sum));
    }
    return;
  }
  vectors(begin, end, [&](auto columns) {
    ColumnSums sums;
    for (std::int64_t i = 0, at = of.first; i < of.length; ++i, at += of.step) {
      store(y + at, columns, sums.add(load(x + at, columns)));
    }
  });
}

/// Threads share the matrices, or the columns if there is only one matrix.
template <typename Pointer>
void cumulative_sum(const KernelCall& call) {
  const TensorView& x = call.inputs[0];
  const auto dim = static_cast<std::uint32_t>(call.attributes.integer("dim"));
  const bool reverse = call.attributes.integer("reverse") == 1;
  const std::int64_t inner = extent(x, dim + 1, x.rank);
  const std::int64_t length = x.shape[dim];
  const Columns columns = {length, inner, reverse ? (length - 1) * inner : 0, reverse ? -inner : inner};
  const std::int64_t matrices = extent(x, 0, dim);
  const auto from = reals<Pointer>(x);
  const auto to = reals<Pointer>(call.outputs[0]);
  if (matrices == 1) {
    const std::int64_t share = (row_grain(length) + 63) / 64 * 64;
    call.threads.split(inner, share,
                       [=](std::int64_t begin, std::int64_t end) { sum_columns(from, to, columns, begin, end); });
    return;
  }
  call.threads.split(matrices, row_grain(length * inner), [=](std::int64_t begin, std::int64_t end) {
    for (std::int64_t k = begin; k < end; ++k) {
      sum_columns(from + k * length * inner, to + k * length * inner, columns, 0, inner);
    }
  });
}

}  // namespace
}  // namespace shardrun::device::cpu::SHARDRUN_KERNEL_VARIANT

SHARDRUN_KERNELS(cumulative_sum, {"cumulative_sum", {.run = by_type<cumulative_sum<float*>, cumulative_sum<Reals>>}})
