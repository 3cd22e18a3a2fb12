#pragma once

#include "core/device/cpu/vec.h"
#include "core/device/cpu/views.h"

namespace shardrun::device::cpu::SHARDRUN_KERNEL_VARIANT {

/// The number of rows that are summed before their sum is added to the total. This bounds the rounding error, and the
/// number of pages that one pass touches.
inline constexpr std::int64_t rows_at_once = 64;

/// Sums term(r, column) over the rows r, for the columns of `count` neighbouring vectors.
template <int count, typename Pointer, typename At, typename Term>
SHARDRUN_INLINE void sum_rows(Pointer out, bool accumulate, std::int64_t rows, At at, const Term& term) {
  vec total[count] = {};
  for (std::int64_t first = 0; first < rows; first += rows_at_once) {
    const std::int64_t last = first + rows_at_once < rows ? first + rows_at_once : rows;
    vec part[count] = {};
    for (std::int64_t r = first; r < last; ++r) {
      for (int j = 0; j < count; ++j) {
        At shifted = at;
        shifted.begin += j * lanes;
        part[j] += term(r, shifted);
      }
    }
    for (int j = 0; j < count; ++j) {
      total[j] += part[j];
    }
  }
  for (int j = 0; j < count; ++j) {
    At shifted = at;
    shifted.begin += j * lanes;
    store(out, shifted, accumulate ? load(out, shifted) + total[j] : total[j]);
  }
}

/// outputs[0][c] (+)= Σ term(r, c) over the rows, for every column. Threads share the columns.
template <typename Pointer, typename Term>
void column_sums(const KernelCall& call, std::int64_t rows, std::int64_t columns, const Term& term) {
  constexpr int wide = 4;
  const auto out = reals<Pointer>(call.outputs[0]);
  const bool accumulate = call.accumulate;
  const std::int64_t share = (row_grain(rows) + 63) / 64 * 64;
  call.threads.split(columns, share, [&](std::int64_t begin, std::int64_t end) {
    const Term local = term;
    std::int64_t c = begin;
    for (; c + wide * lanes <= end; c += wide * lanes) {
      sum_rows<wide>(out, accumulate, rows, Whole{c}, local);
    }
    vectors(c, end, [&](auto at) { sum_rows<1>(out, accumulate, rows, at, local); });
  });
}

}  // namespace shardrun::device::cpu::SHARDRUN_KERNEL_VARIANT
