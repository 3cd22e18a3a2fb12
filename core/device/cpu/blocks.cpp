#include "core/device/cpu/blocks.h"

#include "core/device/cpu/vec.h"

namespace shardrun::device::cpu::SHARDRUN_KERNEL_VARIANT {

extern const BlockLoops loops_of_blocks;

namespace {

Reals bfloats(const void* data) { return {static_cast<std::byte*>(const_cast<void*>(data)), true}; }

template <typename Pointer>
void widen_rows(Pointer from, std::int64_t from_stride, float* to, std::int64_t to_stride, std::int64_t rows,
                std::int64_t columns) {
  for (std::int64_t r = 0; r < rows; ++r) {
    const Pointer from_row = {from.data + r * from_stride};
    float* to_row = to + r * to_stride;
    vectors(0, columns, [=](auto at) { store(to_row, at, load(from_row, at)); });
  }
}

void widen_block(const void* from, bool halves, std::int64_t from_stride, float* to, std::int64_t to_stride,
                 std::int64_t rows, std::int64_t columns) {
  auto* const data = static_cast<std::uint16_t*>(const_cast<void*>(from));
  if (halves) {
    widen_rows(Halves16{data}, from_stride, to, to_stride, rows, columns);
  } else {
    widen_rows(Bfloats{data}, from_stride, to, to_stride, rows, columns);
  }
}

void narrow_block(const float* from, std::int64_t from_stride, void* to, std::int64_t to_stride, std::int64_t rows,
                  std::int64_t columns, bool add) {
  for (std::int64_t r = 0; r < rows; ++r) {
    const float* from_row = from + r * from_stride;
    const Reals to_row = bfloats(to) + r * to_stride;
    if (add) {
      vectors(0, columns, [=](auto at) { store(to_row, at, load(to_row, at) + load(from_row, at)); });
    } else {
      vectors(0, columns, [=](auto at) { store(to_row, at, load(from_row, at)); });
    }
  }
}

/// Element (row, column) is at `row * down + column * across`.
struct Strided {
  const float* data;
  std::int64_t down;
  std::int64_t across;
};

Strided strided(const Matrix& matrix) {
  return matrix.transposed ? Strided{matrix.data, 1, matrix.stride} : Strided{matrix.data, matrix.stride, 1};
}

/// Computes `height` rows of c in the columns `at`. Terms are summed in the order of k. Row p of `b` begins at
/// `b + p * b_stride`.
template <int height, typename At>
SHARDRUN_INLINE void multiply_rows(std::int64_t k, float alpha, Strided a, const float* b, std::int64_t b_stride,
                                   float* c, std::int64_t c_stride, At at, bool accumulate) {
  vec sums[height] = {};
  for (std::int64_t p = 0; p < k; ++p) {
    const vec right = load(b + p * b_stride, at);
    const float* left = a.data + p * a.across;
    for (int r = 0; r < height; ++r) {
      sums[r] += left[r * a.down] * right;
    }
  }
  for (int r = 0; r < height; ++r) {
    float* to = c + r * c_stride;
    const vec product = alpha * sums[r];
    store(to, at, accumulate ? load(to, at) + product : product);
  }
}

/// Computes rows from `row` on, `height` at a time. Returns the first row that is left.
template <int height, typename At>
SHARDRUN_INLINE std::int64_t multiply_all_rows(std::int64_t row, std::int64_t m, std::int64_t k, float alpha, Strided a,
                                               const float* b, std::int64_t b_stride, float* c, std::int64_t c_stride,
                                               At at, bool accumulate) {
  for (; row + height <= m; row += height) {
    const Strided rows = {a.data + row * a.down, a.down, a.across};
    multiply_rows<height>(k, alpha, rows, b, b_stride, c + row * c_stride, c_stride, at, accumulate);
  }
  return row;
}

/// The same range of lanes, in a vector that begins at element 0.
SHARDRUN_INLINE Whole from_zero(Whole) { return {0}; }
SHARDRUN_INLINE Part from_zero(Part at) { return {0, at.count}; }

SHARDRUN_INLINE std::int64_t count_of(Whole) { return lanes; }
SHARDRUN_INLINE std::int64_t count_of(Part at) { return at.count; }

/// Copies the first `terms` elements of the columns `at` to rows of `to`. In memory each column is contiguous.
template <typename At>
SHARDRUN_INLINE void transpose_columns(const float* columns, std::int64_t stride, At at, std::int64_t terms,
                                       float* to) {
  vectors(0, terms, [&](auto of_terms) {
    vec square[lanes] = {};
    for (std::int64_t j = 0; j < count_of(at); ++j) {
      square[j] = load(columns + j * stride, of_terms);
    }
    transpose(square);
    for (std::int64_t p = 0; p < count_of(of_terms); ++p) {
      store(to + (of_terms.begin + p) * lanes, Whole{0}, square[p]);
    }
  });
}

void multiply_block(std::int64_t m, std::int64_t n, std::int64_t k, float alpha, Matrix a, Matrix b, float* c,
                    std::int64_t c_stride, bool accumulate) {
  constexpr std::int64_t depth = 256;
  alignas(SHARDRUN_VECTOR_BYTES) float panel[depth * lanes];
  for (std::int64_t first = 0; first < k; first += depth) {
    const std::int64_t terms = k - first < depth ? k - first : depth;
    const bool add = accumulate || first > 0;
    Strided left = strided(a);
    left.data += first * left.across;
    vectors(0, n, [&](auto at) {
      const auto place = from_zero(at);
      const float* right = b.data + first * b.stride + at.begin;
      std::int64_t right_stride = b.stride;
      if (b.transposed) {
        transpose_columns(b.data + at.begin * b.stride + first, b.stride, place, terms, panel);
        right = panel;
        right_stride = lanes;
      }
      float* to = c + at.begin;
      std::int64_t row = multiply_all_rows<8>(0, m, terms, alpha, left, right, right_stride, to, c_stride, place, add);
      row = multiply_all_rows<4>(row, m, terms, alpha, left, right, right_stride, to, c_stride, place, add);
      row = multiply_all_rows<2>(row, m, terms, alpha, left, right, right_stride, to, c_stride, place, add);
      multiply_all_rows<1>(row, m, terms, alpha, left, right, right_stride, to, c_stride, place, add);
    });
  }
}

}  // namespace

constinit const BlockLoops loops_of_blocks = {widen_block, narrow_block, multiply_block};

}  // namespace shardrun::device::cpu::SHARDRUN_KERNEL_VARIANT
