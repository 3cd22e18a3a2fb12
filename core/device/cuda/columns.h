#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/device/cuda/launch.h"
#include "core/device/cuda/values.h"

/// Joins the rows of a matrix: y[column] = the join over all rows of term(row, column). The rows are divided into
/// chunks, by their number alone; blocks write a partial result of each chunk to scratch, and the partial results are
/// joined in the order of the chunks. So the bits of the result are always the same.
namespace shardrun::device::cuda {

[[nodiscard]] inline std::int64_t chunks_of(std::int64_t rows) noexcept {
  return std::clamp<std::int64_t>(rows / 128, 1, 128);
}
/// Scratch of join_rows(). One chunk needs none.
[[nodiscard]] inline std::size_t join_rows_scratch(std::int64_t rows, std::int64_t width) noexcept {
  const std::int64_t chunks = chunks_of(rows);
  return chunks == 1 ? 0 : static_cast<std::size_t>(chunks * width) * sizeof(float);
}

template <typename Term, typename Join>
struct JoinRows {
  Term term;
  Join join;
  float first;  ///< the result of no rows
  std::int64_t rows;
  std::int64_t width;
  std::int64_t chunks;
  float* partial;  ///< [chunks, width]; one chunk: y has the result
  Reals y;
  bool accumulate;

  /// A warp reads 32 neighbouring columns of a row; the warps of a block read different rows.
  SHARDRUN_ON_DEVICE void operator()(Block& block) const {
    const std::int64_t tiles = (width + warp_size - 1) / warp_size;
    const std::int64_t chunk = block.index() / tiles;
    const std::int64_t column = block.index() % tiles * warp_size + block.lane();
    const std::int64_t end = rows * (chunk + 1) / chunks;
    const Shared<float> values = block.shared<float>(most_threads);
    float value = first;
    if (column < width) {
      for (std::int64_t row = rows * chunk / chunks + block.warp(); row < end; row += block.warps()) {
        value = join(value, term(row, column));
      }
    }
    values[block.thread()] = value;
    block.sync();
    if (block.warp() != 0 || column >= width) {
      return;
    }
    for (int warp = 1; warp < block.warps(); ++warp) {
      value = join(value, values[warp * warp_size + block.lane()]);
    }
    if (chunks == 1) {
      y.put(column, value, accumulate);
    } else {
      partial[chunk * width + column] = value;
    }
  }
};

template <typename Join>
struct JoinChunks {
  Join join;
  std::int64_t width;
  std::int64_t chunks;
  const float* partial;
  Reals y;
  bool accumulate;

  SHARDRUN_ON_DEVICE void operator()(std::int64_t column) const {
    float value = partial[column];
    for (std::int64_t chunk = 1; chunk < chunks; ++chunk) {
      value = join(value, partial[chunk * width + column]);
    }
    y.put(column, value, accumulate);
  }
};

/// outputs[0][column] = join of term(row, column), or added to it if the call accumulates. REQUIRES: the call has the
/// scratch, and join(first, x) is x.
template <typename Term, typename Join>
void join_rows(const KernelCall& call, std::int64_t rows, std::int64_t width, const Term& term, const Join& join,
               float first) {
  const std::int64_t chunks = chunks_of(rows);
  const Reals y = reals(call.outputs[0]);
  auto* const partial = reinterpret_cast<float*>(call.scratch.data());
  const std::int64_t tiles = (width + warp_size - 1) / warp_size;
  launch(call, tiles * chunks, most_threads, shared_bytes<float>(most_threads),
         JoinRows<Term, Join>{term, join, first, rows, width, chunks, partial, y, call.accumulate});
  if (chunks > 1) {
    for_each(call, width, JoinChunks<Join>{join, width, chunks, partial, y, call.accumulate});
  }
}

}  // namespace shardrun::device::cuda
