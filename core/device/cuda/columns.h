#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "core/device/cuda/launch.h"
#include "core/device/cuda/values.h"

/// Reduces the rows of a matrix to one: y[column] = the join over all rows of term(row, column). The number of rows
/// alone decides how they are divided into chunks. Blocks write the result of each chunk to scratch. A second launch
/// joins these results in the order of the chunks, so the bits of y are always the same.
namespace shardrun::device::cuda {

[[nodiscard]] inline std::int64_t chunks_of(std::int64_t rows) noexcept {
  return std::clamp<std::int64_t>(rows / 128, 1, 256);
}
/// Scratch bytes of join_rows(); 0 if there is only one chunk.
[[nodiscard]] inline std::size_t join_rows_scratch(std::int64_t rows, std::int64_t width) noexcept {
  const std::int64_t chunks = chunks_of(rows);
  return chunks == 1 ? 0 : static_cast<std::size_t>(chunks * width) * sizeof(float);
}

/// A lane reduces `pack` neighbouring columns; the warps of a block read different rows.
template <int pack, typename Term, typename Join>
struct JoinRows {
  static constexpr int tile = warp_size * pack;  ///< columns that a block reduces
  static constexpr int ahead = 4;                ///< rows that a warp reads at once

  Term term;
  Join join;
  float first;  ///< the result if there are no rows
  std::int64_t rows;
  std::int64_t width;
  std::int64_t chunks;
  float* partial;  ///< [chunks, width]; unused with one chunk, whose result goes to y
  Reals y;
  bool accumulate;

  [[nodiscard]] static constexpr std::size_t shared() { return shared_bytes<float>(most_threads * pack); }
  [[nodiscard]] std::int64_t tiles() const { return (width + tile - 1) / tile; }

  SHARDRUN_ON_DEVICE void operator()(Block& block) const {
    const std::int64_t tiles = (width + tile - 1) / tile;
    const std::int64_t chunk = block.index() / tiles;
    const std::int64_t begin = block.index() % tiles * tile;
    const Shared<float> values = block.shared<float>(most_threads * pack);
    const Pack<pack> own = join_own(block, chunk, begin + block.lane() * pack);
    SHARDRUN_UNROLLED for (int k = 0; k < pack; ++k) { values[k * block.threads() + block.thread()] = own[k]; }
    block.sync();
    for (int i = block.thread(); i < tile; i += block.threads()) {
      const int lane = i % warp_size;
      const int k = i / warp_size;
      const std::int64_t column = begin + lane * pack + k;
      if (column >= width) {
        continue;
      }
      float value = values[k * block.threads() + lane];
      for (int warp = 1; warp < block.warps(); ++warp) {
        value = join(value, values[k * block.threads() + warp * warp_size + lane]);
      }
      if (chunks == 1) {
        y.put(column, value, accumulate);
      } else {
        partial[chunk * width + column] = value;
      }
    }
  }

 private:
  /// Joins the rows of a chunk that this warp reads.
  SHARDRUN_ON_DEVICE Pack<pack> join_own(const Block& block, std::int64_t chunk, std::int64_t column) const {
    Pack<pack> value;
    SHARDRUN_UNROLLED for (int k = 0; k < pack; ++k) { value[k] = first; }
    if (column >= width) {
      return value;
    }
    const std::int64_t end = rows * (chunk + 1) / chunks;
    std::int64_t row = rows * chunk / chunks + block.warp();
    for (; row + (ahead - 1) * block.warps() < end; row += ahead * block.warps()) {
      Pack<pack> found[ahead];
      SHARDRUN_UNROLLED for (int i = 0; i < ahead; ++i) {
        found[i] = term.template get<pack>(row + i * block.warps(), column);
      }
      SHARDRUN_UNROLLED for (int i = 0; i < ahead; ++i) { add(value, found[i]); }
    }
    for (; row < end; row += block.warps()) {
      add(value, term.template get<pack>(row, column));
    }
    return value;
  }
  SHARDRUN_ON_DEVICE void add(Pack<pack>& to, const Pack<pack>& found) const {
    SHARDRUN_UNROLLED for (int k = 0; k < pack; ++k) { to[k] = join(to[k], found[k]); }
  }
};

/// The partial results of the chunks as terms of a second reduction.
struct PartialTerm {
  Reals partial;
  std::int64_t width;

  template <int pack>
  [[nodiscard]] SHARDRUN_ON_DEVICE Pack<pack> get(std::int64_t row, std::int64_t column) const {
    return partial.get_pack<pack>(row * width + column);
  }
};

template <int pack, typename Term, typename Join>
void join_rows_in_packs(const KernelCall& call, std::int64_t rows, std::int64_t width, const Term& term,
                        const Join& join, float first) {
  const std::int64_t chunks = chunks_of(rows);
  const Reals y = reals(call.outputs[0]);
  auto* const partial = reinterpret_cast<float*>(call.scratch.data());
  const JoinRows<pack, Term, Join> of_rows = {term, join, first, rows, width, chunks, partial, y, call.accumulate};
  launch(call, of_rows.tiles() * chunks, most_threads, of_rows.shared(), of_rows);
  if (chunks > 1) {
    const PartialTerm of_partial = {{reinterpret_cast<unsigned char*>(partial), false}, width};
    const JoinRows<1, PartialTerm, Join> of_chunks = {of_partial, join,    first, chunks,         width,
                                                      1,          nullptr, y,     call.accumulate};
    launch(call, of_chunks.tiles(), most_threads, of_chunks.shared(), of_chunks);
  }
}

/// outputs[0][column] = the join of the terms of all rows. If the call accumulates, the join is added to the old value.
/// term.get<pack>(row, column) gives the terms of `pack` neighbouring columns. With `in_packs`, get() is called with
/// pack_size, for columns that are multiples of pack_size, and `width` must be a multiple of pack_size.
/// REQUIRES: the call has join_rows_scratch() bytes of scratch, and join(first, x) is x.
template <typename Term, typename Join>
void join_rows(const KernelCall& call, std::int64_t rows, std::int64_t width, bool in_packs, const Term& term,
               const Join& join, float first) {
  in_packs ? join_rows_in_packs<pack_size>(call, rows, width, term, join, first)
           : join_rows_in_packs<1>(call, rows, width, term, join, first);
}

}  // namespace shardrun::device::cuda
