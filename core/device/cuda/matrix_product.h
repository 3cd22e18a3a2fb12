#pragma once

#include <cstddef>
#include <cstdint>

#include "core/device/cuda/launch.h"
#include "core/device/cuda/matrix.h"
#include "core/device/cuda/values.h"

/// Products of bfloat16 matrices with tensor cores, with sums in float32: y[m, n] = the sum over k of a(m, k) b(k, n).
namespace shardrun::device::cuda {

/// An operand of a product, stored as [rows, inner] or [inner, rows]. The rows of b are the columns of the result.
struct BfloatOperand {
  const std::uint16_t* data;
  std::int64_t length;  ///< size of the dimension that is last in memory
  bool is_in_eights;    ///< Eights may be read: the length is a multiple of 8, and the tensor is aligned
};

/// `size`: rows and columns of the result that a block computes. `a_inner_last`, `b_inner_last`: whether the operand is
/// stored as [rows, inner]. Eight warps compute 2 x 4 parts of the block's tile. While they multiply one tile of the
/// operands, the next one is loaded into registers.
template <int size, bool a_inner_last, bool b_inner_last>
struct MatrixProduct {
  static constexpr int depth = 32;  ///< indices k per tile
  static constexpr int threads = 256;
  static constexpr int rows_of_warp = size / 2;
  static constexpr int columns_of_warp = size / 4;
  static constexpr int fragments_down = rows_of_warp / 16;
  static constexpr int fragments_across = columns_of_warp / 8;

  BfloatOperand a;
  BfloatOperand b;
  Reals y;
  std::int64_t rows;
  std::int64_t columns;
  std::int64_t inner;
  bool accumulate;

  /// A tile of an operand: how it is read from global memory into registers, and stored in shared memory.
  template <bool inner_last>
  struct Tile {
    static constexpr int lines = inner_last ? size : depth;
    static constexpr int eights = (inner_last ? depth : size) / 8;  ///< Eights per line
    static constexpr int stride = eights + 1;
    static constexpr int of_thread = lines * eights / threads;
    static constexpr int buffer = lines * stride;

    /// Reads a thread's part from global memory. Elements outside the matrix are 0.
    SHARDRUN_ON_DEVICE static void read(const BfloatOperand& from, int thread, std::int64_t row, std::int64_t count,
                                        std::int64_t k, std::int64_t end, Eight (&to)[of_thread]) {
      const std::int64_t first_line = inner_last ? row : k;
      const std::int64_t line_count = inner_last ? count : end;
      const std::int64_t first_element = inner_last ? k : row;
      const std::int64_t element_count = inner_last ? end : count;
      SHARDRUN_UNROLLED for (int i = 0; i < of_thread; ++i) {
        const int number = thread + i * threads;
        const std::int64_t line = first_line + number / eights;
        const std::int64_t element = first_element + number % eights * 8;
        const std::int64_t left = line < line_count ? element_count - element : 0;
        const std::uint16_t* const at = from.data + line * from.length + element;
        Eight found = {};
        if (from.is_in_eights && left >= 8) {
          found = *reinterpret_cast<const Eight*>(at);
        } else {
          SHARDRUN_UNROLLED for (int e = 0; e < 8; ++e) {
            const std::uint32_t bits = e < left ? at[e] : 0U;
            found.words[e / 2] |= bits << static_cast<unsigned>(e % 2 * 16);
          }
        }
        to[i] = found;
      }
    }
    SHARDRUN_ON_DEVICE static void write(int thread, const Eight (&from)[of_thread], const Shared<Eight>& to,
                                         int begin) {
      SHARDRUN_UNROLLED for (int i = 0; i < of_thread; ++i) {
        const int number = thread + i * threads;
        to[begin + number / eights * stride + number % eights] = from[i];
      }
    }
  };
  using TileA = Tile<a_inner_last>;
  using TileB = Tile<b_inner_last>;

  [[nodiscard]] static std::size_t shared() {
    return shared_bytes<Eight>(2 * TileA::buffer) + shared_bytes<Eight>(2 * TileB::buffer);
  }
  [[nodiscard]] std::int64_t blocks() const { return (rows + size - 1) / size * ((columns + size - 1) / size); }

  SHARDRUN_ON_DEVICE void operator()(Block& block) const {
    const std::int64_t across = (columns + size - 1) / size;
    const std::int64_t row = block.index() / across * size;
    const std::int64_t column = block.index() % across * size;
    const Shared<Eight> of_a = block.shared<Eight>(2 * TileA::buffer);
    const Shared<Eight> of_b = block.shared<Eight>(2 * TileB::buffer);
    const int my_row = block.warp() / 4 * rows_of_warp;
    const int my_column = block.warp() % 4 * columns_of_warp;
    FragmentC sums[fragments_down][fragments_across] = {};
    Eight next_a[TileA::of_thread];
    Eight next_b[TileB::of_thread];
    TileA::read(a, block.thread(), row, rows, 0, inner, next_a);
    TileB::read(b, block.thread(), column, columns, 0, inner, next_b);
    int turn = 0;
    for (std::int64_t k = 0; k < inner; k += depth) {
      const int begin_a = turn * TileA::buffer;
      const int begin_b = turn * TileB::buffer;
      TileA::write(block.thread(), next_a, of_a, begin_a);
      TileB::write(block.thread(), next_b, of_b, begin_b);
      block.sync();  // the other buffer is free now, too: all threads have come here after reading it
      if (k + depth < inner) {
        TileA::read(a, block.thread(), row, rows, k + depth, inner, next_a);
        TileB::read(b, block.thread(), column, columns, k + depth, inner, next_b);
      }
      SHARDRUN_UNROLLED for (int i = 0; i < depth; i += 16) {
        FragmentA left[fragments_down];
        SHARDRUN_UNROLLED for (int m = 0; m < fragments_down; ++m) {
          left[m] = fragment_a(block, of_a, begin_a, my_row + 16 * m, i);
        }
        SHARDRUN_UNROLLED for (int n = 0; n < fragments_across / 2; ++n) {
          const TwoB right = fragments_b(block, of_b, begin_b, my_column + 16 * n, i);
          SHARDRUN_UNROLLED for (int m = 0; m < fragments_down; ++m) {
            multiply_add(block, left[m], right.of[0], sums[m][2 * n]);
            multiply_add(block, left[m], right.of[1], sums[m][2 * n + 1]);
          }
        }
      }
      turn = 1 - turn;
    }
    SHARDRUN_UNROLLED for (int m = 0; m < fragments_down; ++m) {
      SHARDRUN_UNROLLED for (int n = 0; n < fragments_across; ++n) {
        SHARDRUN_UNROLLED for (int i = 0; i < 4; ++i) {
          const std::int64_t at_row = row + my_row + 16 * m + block.lane() / 4 + i / 2 * 8;
          const std::int64_t at_column = column + my_column + 8 * n + block.lane() % 4 * 2 + i % 2;
          if (at_row < rows && at_column < columns) {
            y.put(at_row * columns + at_column, sums[m][n].of[i], accumulate);
          }
        }
      }
    }
  }

 private:
  SHARDRUN_ON_DEVICE static FragmentA fragment_a(Block& block, const Shared<Eight>& from, int begin, int row, int k) {
    if constexpr (a_inner_last) {
      return load_a<TileA::stride>(block, from, begin, row, k / 8);
    } else {
      return load_transposed_a<TileA::stride>(block, from, begin, k, row / 8);
    }
  }
  SHARDRUN_ON_DEVICE static TwoB fragments_b(Block& block, const Shared<Eight>& from, int begin, int column, int k) {
    if constexpr (b_inner_last) {
      return load_transposed_b<TileB::stride>(block, from, begin, column, k / 8);
    } else {
      return load_b<TileB::stride>(block, from, begin, k, column / 8);
    }
  }
};

/// Large tiles need half the memory traffic of small ones, but there may be too few of them to fill a GPU.
template <bool a_inner_last, bool b_inner_last>
void multiply_matrices(const KernelCall& call, std::int64_t rows, std::int64_t columns, std::int64_t inner,
                       const BfloatOperand& a, const BfloatOperand& b, const Reals& y) {
  constexpr std::int64_t enough_blocks = 128;
  const MatrixProduct<128, a_inner_last, b_inner_last> large = {a, b, y, rows, columns, inner, call.accumulate};
  if (large.blocks() >= enough_blocks) {
    launch(call, large.blocks(), large.threads, large.shared(), large);
    return;
  }
  const MatrixProduct<64, a_inner_last, b_inner_last> small = {a, b, y, rows, columns, inner, call.accumulate};
  launch(call, small.blocks(), small.threads, small.shared(), small);
}

}  // namespace shardrun::device::cuda
