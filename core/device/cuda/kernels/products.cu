#include <cstddef>
#include <cstdint>
#include <string>

#include "core/device/cuda/launch.h"
#include "core/device/cuda/loops.h"
#include "core/device/cuda/matrix.h"
#include "core/device/cuda/product.h"
#include "core/device/cuda/values.h"
#include "core/graph/einsum.h"

// matmul, its gradient and einsum. A device with a library of products uses the library instead.

namespace shardrun::device::cuda {
namespace {

// Products of bfloat16 matrices with tensor cores, with sums in float32: y[m, n] = the sum over k of a(m, k) b(k, n).

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

  /// A tile of an operand. It is read from global memory into registers, and then stored in shared memory.
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

/// A matrix with one stride between rows and one along the inner index.
struct Matrix {
  using Row = std::int64_t;
  using Inner = std::int64_t;
  Reals data;
  std::int64_t row_stride;
  std::int64_t inner_stride;
  bool inner_is_fast;

  SHARDRUN_ON_DEVICE Row row(std::int64_t, std::int64_t m) const { return m * row_stride; }
  SHARDRUN_ON_DEVICE Inner inner(std::int64_t, std::int64_t k) const { return k * inner_stride; }
  SHARDRUN_ON_DEVICE float get(Row row, Inner inner) const { return data.get(row + inner); }
};

/// A matrix stored as [rows, k], or as [k, rows].
Matrix matrix_of(const TensorView& tensor, std::int64_t rows, std::int64_t inner, bool inner_is_last) {
  return inner_is_last ? Matrix{reals(tensor), inner, 1, true} : Matrix{reals(tensor), 1, rows, false};
}

struct Rows {
  Reals y;
  std::int64_t columns;
  bool accumulate;
  SHARDRUN_ON_DEVICE void put(std::int64_t, std::int64_t m, std::int64_t n, float value) const {
    y.put(m * columns + n, value, accumulate);
  }
};

bool are_bfloat(const TensorView& a, const TensorView& b) {
  return a.dtype == graph::DType::bf16 && b.dtype == graph::DType::bf16;
}

/// `length`: the size of the tensor's last dimension when it is viewed as a matrix.
BfloatOperand bfloat_operand(const TensorView& tensor, std::int64_t length) {
  return {static_cast<const std::uint16_t*>(tensor.data), length, length % 8 == 0 && is_aligned(tensor)};
}

/// y[l, n] = sum over k of x[l, k] w[k, n], or w[n, k] when transposed. `contract` trailing dimensions of x are k.
void matmul(const KernelCall& call) {
  const TensorView& x = call.inputs[0];
  const TensorView& w = call.inputs[1];
  const auto contract = static_cast<std::uint32_t>(call.attributes.integer("contract"));
  const bool transpose = call.attributes.integer("transpose") != 0;
  const std::int64_t ls = extent(x, 0, x.rank - contract);
  const std::int64_t ks = extent(x, x.rank - contract, x.rank);
  const std::int64_t ns = transpose ? extent(w, 0, w.rank - contract) : extent(w, contract, w.rank);
  if (are_bfloat(x, w)) {
    const BfloatOperand of_x = bfloat_operand(x, ks);
    if (transpose) {
      multiply_matrices<true, true>(call, ls, ns, ks, of_x, bfloat_operand(w, ks), reals(call.outputs[0]));
    } else {
      multiply_matrices<true, false>(call, ls, ns, ks, of_x, bfloat_operand(w, ns), reals(call.outputs[0]));
    }
    return;
  }
  multiply(call, 1, ls, ns, ks, matrix_of(x, ls, ks, true), matrix_of(w, ns, ks, transpose),
           Rows{reals(call.outputs[0]), ns, call.accumulate});
}

/// dw[k, n] = sum over l of x[l, k] dy[l, n], laid out as [n, k] when transposed.
void matmul_gradient_weights(const KernelCall& call) {
  const TensorView& x = call.inputs[0];
  const TensorView& dy = call.inputs[1];
  const auto contract = static_cast<std::uint32_t>(call.attributes.integer("contract"));
  const std::uint32_t leading = x.rank - contract;
  const std::int64_t ls = extent(x, 0, leading);
  const std::int64_t ks = extent(x, leading, x.rank);
  const std::int64_t ns = extent(dy, leading, dy.rank);
  if (are_bfloat(x, dy)) {
    const BfloatOperand of_x = bfloat_operand(x, ks);
    const BfloatOperand of_dy = bfloat_operand(dy, ns);
    if (call.attributes.integer("transpose") != 0) {
      multiply_matrices<false, false>(call, ns, ks, ls, of_dy, of_x, reals(call.outputs[0]));
    } else {
      multiply_matrices<false, false>(call, ks, ns, ls, of_x, of_dy, reals(call.outputs[0]));
    }
    return;
  }
  const Matrix of_x = matrix_of(x, ks, ls, false);
  const Matrix of_dy = matrix_of(dy, ns, ls, false);
  const Reals dw = reals(call.outputs[0]);
  if (call.attributes.integer("transpose") != 0) {
    multiply(call, 1, ns, ks, ls, of_dy, of_x, Rows{dw, ks, call.accumulate});
  } else {
    multiply(call, 1, ks, ns, ls, of_x, of_dy, Rows{dw, ns, call.accumulate});
  }
}

/// An operand of einsum. Each group of its letters (batch, rows, inner) is a nest of loops.
struct Letters {
  using Row = std::int64_t;
  using Inner = std::int64_t;
  Reals data;
  Loops<1> batches;
  Loops<1> rows;
  Loops<1> summed;
  bool inner_is_fast;

  SHARDRUN_ON_DEVICE Row row(std::int64_t batch, std::int64_t m) const {
    return batches.offset(batch) + rows.offset(m);
  }
  SHARDRUN_ON_DEVICE Inner inner(std::int64_t, std::int64_t k) const { return summed.offset(k); }
  SHARDRUN_ON_DEVICE float get(Row row, Inner inner) const { return data.get(row + inner); }
};

struct LettersOfResult {
  Reals y;
  Loops<1> batches;
  Loops<1> rows;
  Loops<1> columns;
  bool accumulate;
  SHARDRUN_ON_DEVICE void put(std::int64_t batch, std::int64_t m, std::int64_t n, float value) const {
    y.put(batches.offset(batch) + rows.offset(m) + columns.offset(n), value, accumulate);
  }
};

/// The distance in elements between neighbouring indices of a letter; 0 if the tensor lacks the letter.
std::int64_t stride_of(const TensorView& tensor, const std::string& letters, char letter) {
  const std::size_t at = letters.find(letter);
  return at == std::string::npos ? 0 : extent(tensor, static_cast<std::uint32_t>(at) + 1, tensor.rank);
}

/// y[i] = sum over r of a[i, r] b[i, r], with i the indices of the result's letters and r the other letters' indices.
/// Letters of the result that both operands have are the batch; letters that only one has are rows or columns.
void einsum(const KernelCall& call) {
  const graph::Einsum einsum = graph::parse_einsum(call.attributes.text("spec"));
  const TensorView& of_a = call.inputs[0];
  const TensorView& of_b = call.inputs[1];
  Letters a = {.data = reals(of_a), .batches = {}, .rows = {}, .summed = {}, .inner_is_fast = false};
  Letters b = {.data = reals(of_b), .batches = {}, .rows = {}, .summed = {}, .inner_is_fast = false};
  LettersOfResult y = {reals(call.outputs[0]), {}, {}, {}, call.accumulate};
  std::int64_t batch = 1;
  std::int64_t rows = 1;
  std::int64_t columns = 1;
  std::int64_t inner = 1;
  const auto size_of = [&](char letter) {
    const std::size_t in_a = einsum.a.find(letter);
    return in_a != std::string::npos ? of_a.shape[in_a] : of_b.shape[einsum.b.find(letter)];
  };
  for (auto letter = einsum.result.rbegin(); letter != einsum.result.rend(); ++letter) {
    const std::int64_t size = size_of(*letter);
    const std::int64_t in_a = stride_of(of_a, einsum.a, *letter);
    const std::int64_t in_b = stride_of(of_b, einsum.b, *letter);
    const std::int64_t in_y = stride_of(call.outputs[0], einsum.result, *letter);
    const bool a_has_it = einsum.a.find(*letter) != std::string::npos;
    const bool b_has_it = einsum.b.find(*letter) != std::string::npos;
    if (a_has_it && b_has_it) {
      a.batches.add_outer(size, in_a);
      b.batches.add_outer(size, in_b);
      y.batches.add_outer(size, in_y);
      batch *= size;
    } else if (a_has_it) {
      a.rows.add_outer(size, in_a);
      y.rows.add_outer(size, in_y);
      rows *= size;
    } else {
      b.rows.add_outer(size, in_b);
      y.columns.add_outer(size, in_y);
      columns *= size;
    }
  }
  const std::string summed = graph::summed_letters(einsum);
  for (auto letter = summed.rbegin(); letter != summed.rend(); ++letter) {
    const std::int64_t size = size_of(*letter);
    a.summed.add_outer(size, stride_of(of_a, einsum.a, *letter));
    b.summed.add_outer(size, stride_of(of_b, einsum.b, *letter));
    inner *= size;
  }
  a.inner_is_fast = a.summed.consecutive() > 1;
  b.inner_is_fast = b.summed.consecutive() > 1;
  multiply(call, batch, rows, columns, inner, a, b, y);
}

const AddKernels products({{"matmul", {.run = matmul}},
                           {"matmul_gradient_weights", {.run = matmul_gradient_weights}},
                           {"einsum", {.run = einsum}}});

}  // namespace

}  // namespace shardrun::device::cuda
