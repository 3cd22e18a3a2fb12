#include "core/device/cpu/few_rows.h"

#include "core/device/cpu/vec.h"

// These products take about the time of reading b once from memory.
//
// If b is stored [k, n], `terms` rows of b at a time are read from one end to the other. A vector of each stays in a
// register while the sums of each row of c, which lie in a cache, are read, added to and written.
//
// If b is stored [n, k] (transposed), each element of c is the dot product of two rows. Lane i of a vector adds the
// products i, i + lanes, …; then the lanes are added. The rows of a tile of c share what is loaded of b.

namespace shardrun::device::cpu::SHARDRUN_KERNEL_VARIANT {

extern const FewRowsRunner few_rows_runner;

namespace {

constexpr std::int64_t terms = 8;               // products that are added to a sum while it is in a register
constexpr std::int64_t rows_ahead = 4 * terms;  // rows of b from the one computed to the one fetched
constexpr std::int64_t depth = 256;  // terms added up before their sum is added to c: this bounds the rounding error
constexpr std::int64_t sums_room = 4096;  // floats of sums: half of a first-level cache
constexpr std::int64_t widest = 1024;     // columns that are computed together
constexpr std::int64_t most_rows = 32;    // rows that are computed together

std::int64_t lesser(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

SHARDRUN_INLINE const float* moved(const float* from, std::int64_t elements) { return from + elements; }
SHARDRUN_INLINE Bfloats moved(Bfloats from, std::int64_t elements) { return {from.data + elements}; }
SHARDRUN_INLINE Halves16 moved(Halves16 from, std::int64_t elements) { return {from.data + elements}; }

/// Begins to move this place's cache line into the second-level cache. Fetching it into the first level was a third
/// slower, because fewer lines can be on their way there.
SHARDRUN_INLINE void fetch(const float* from) { __builtin_prefetch(from, 0, 2); }
SHARDRUN_INLINE void fetch(Bfloats from) { __builtin_prefetch(from.data, 0, 2); }
SHARDRUN_INLINE void fetch(Halves16 from) { __builtin_prefetch(from.data, 0, 2); }

SHARDRUN_INLINE float element(const float* from, std::int64_t index) { return from[index]; }
SHARDRUN_INLINE float element(Bfloats from, std::int64_t index) {
  return __builtin_bit_cast(float, static_cast<std::uint32_t>(from.data[index]) << 16U);
}

/// Rows of a, in float32 or bfloat16.
template <typename Left>
struct Rows {
  Left data;
  std::int64_t stride;
  std::int64_t count;
};

/// Copies `columns` columns of some rows to `to` [⌈columns / terms⌉, rows, terms]. Where the rows are stored, they can
/// begin so far apart that they push each other out of the first-level cache.
template <typename Left>
void gather_terms(Rows<Left> from, std::int64_t columns, float* to) {
  for (std::int64_t first = 0; first < columns; first += terms) {
    const std::int64_t count = lesser(terms, columns - first);
    for (std::int64_t r = 0; r < from.count; ++r) {
      for (std::int64_t t = 0; t < count; ++t) {
        to[(first * from.count) + r * terms + t] = element(from.data, r * from.stride + first + t);
      }
    }
  }
}

/// Adds `count` products to the sums of every row in the columns `at`, and fetches the rows of b `ahead` further on.
template <std::int64_t count, typename Weights, typename At>
SHARDRUN_INLINE void add_terms(const float* a, std::int64_t rows, Weights b, std::int64_t b_stride, std::int64_t ahead,
                               float* sums, std::int64_t sums_stride, At at) {
  vec right[count];
  for (std::int64_t t = 0; t < count; ++t) {
    fetch(moved(b, (t + ahead) * b_stride + at.begin));
    right[t] = load(moved(b, t * b_stride), at);
  }
  for (std::int64_t r = 0; r < rows; ++r) {
    float* const to = sums + r * sums_stride + at.begin;
    const float* const left = a + r * terms;
    vec sum = load(to, Whole{0});
    for (std::int64_t t = 0; t < count; ++t) {
      sum += left[t] * right[t];
    }
    store(to, Whole{0}, sum);
  }
}

/// Computes [0, columns) of c if b is stored [k, n]. REQUIRES: a row of sums is at most sums_room / a.count long.
template <typename Left, typename Weights>
void add_columns_of_sums(Rows<Left> a, std::int64_t k, Weights b, std::int64_t b_stride, float* c,
                         std::int64_t c_stride, std::int64_t columns, bool accumulate) {
  alignas(64) float sums[sums_room];
  alignas(64) float left[most_rows * depth];
  const std::int64_t stride = (columns + lanes - 1) / lanes * lanes;
  for (std::int64_t first = 0; first == 0 || first < k; first += depth) {
    const std::int64_t end = lesser(k, first + depth);
    gather_terms<Left>({moved(a.data, first), a.stride, a.count}, end - first, left);
    __builtin_memset(sums, 0, static_cast<std::size_t>(a.count * stride) * sizeof(float));
    const float* group = left;
    std::int64_t p = first;
    for (; p + terms <= end; p += terms, group += a.count * terms) {
      const std::int64_t ahead = p + rows_ahead + terms <= k ? rows_ahead : 0;
      vectors(0, columns, [&](auto at) {
        add_terms<terms>(group, a.count, moved(b, p * b_stride), b_stride, ahead, sums, stride, at);
      });
    }
    for (; p < end; ++p, ++group) {
      vectors(0, columns,
              [&](auto at) { add_terms<1>(group, a.count, moved(b, p * b_stride), b_stride, 0, sums, stride, at); });
    }
    for (std::int64_t r = 0; r < a.count; ++r) {
      const float* const from = sums + r * stride;
      float* const to = c + r * c_stride;
      if (accumulate || first > 0) {
        vectors(0, columns, [=](auto at) { store(to, at, load(to, at) + load(from, at)); });
      } else {
        vectors(0, columns, [=](auto at) { store(to, at, load(from, at)); });
      }
    }
  }
}

constexpr int tile_rows = SHARDRUN_VECTOR_BYTES == 64 ? 4 : 2;
constexpr int tile_columns = 4;
constexpr int single_columns = 8;  // columns of a tile of one row; fewer sums would wait for each other

/// Computes `rows` rows of c in `columns` columns if b is stored [n, k].
template <int rows, int columns, typename Left, typename Weights>
SHARDRUN_INLINE void multiply_tile(Rows<Left> a, std::int64_t k, Weights b, std::int64_t b_stride, float* c,
                                   std::int64_t c_stride, bool accumulate) {
  vec sums[rows * columns] = {};
  vectors(0, k, [&](auto at) {
    vec right[columns];
    for (int j = 0; j < columns; ++j) {
      fetch(moved(b, (j + columns) * b_stride + at.begin));
      right[j] = load(moved(b, j * b_stride), at);
    }
    for (int r = 0; r < rows; ++r) {
      const vec left = load(moved(a.data, r * a.stride), at);
      for (int j = 0; j < columns; ++j) {
        sums[r * columns + j] += left * right[j];
      }
    }
  });
  float dots[rows * columns];
  if constexpr (rows * columns % lanes == 0) {
    for (int i = 0; i < rows * columns; i += lanes) {
      store(dots, Whole{i}, sums_of_lanes(sums + i));
    }
  } else {
    for (int i = 0; i < rows * columns; ++i) {
      dots[i] = sum(sums[i]);
    }
  }
  for (int i = 0; i < rows * columns; ++i) {
    float* const to = c + i / columns * c_stride + i % columns;
    *to = accumulate ? *to + dots[i] : dots[i];
  }
}

/// Computes all rows of c in `columns` columns, `rows` rows at a time.
template <int rows, int columns, typename Left, typename Weights>
void multiply_dots(Rows<Left> a, std::int64_t k, Weights b, std::int64_t b_stride, float* c, std::int64_t c_stride,
                   bool accumulate) {
  std::int64_t r = 0;
  for (; r + rows <= a.count; r += rows) {
    multiply_tile<rows, columns, Left>({moved(a.data, r * a.stride), a.stride, rows}, k, b, b_stride, c + r * c_stride,
                                       c_stride, accumulate);
  }
  for (; r < a.count; ++r) {
    multiply_tile<1, columns, Left>({moved(a.data, r * a.stride), a.stride, 1}, k, b, b_stride, c + r * c_stride,
                                    c_stride, accumulate);
  }
}

template <typename Left, typename Weights>
void multiply_part(const Product& p, Left left, Weights b, bool accumulate, std::int64_t begin, std::int64_t end) {
  const Rows<Left> a = {left, p.a.stride, p.m};
  float* const c = p.c.floats();
  if (p.b.transposed) {
    std::int64_t j = begin;
    for (; p.m < tile_rows && j + single_columns <= end; j += single_columns) {
      multiply_dots<1, single_columns>(a, p.k, moved(b, j * p.b.stride), p.b.stride, c + j, p.c.stride, accumulate);
    }
    for (; j + tile_columns <= end; j += tile_columns) {
      multiply_dots<tile_rows, tile_columns>(a, p.k, moved(b, j * p.b.stride), p.b.stride, c + j, p.c.stride,
                                             accumulate);
    }
    for (; j < end; ++j) {
      multiply_dots<1, 1>(a, p.k, moved(b, j * p.b.stride), p.b.stride, c + j, p.c.stride, accumulate);
    }
    return;
  }
  for (std::int64_t r = 0; r < p.m; r += most_rows) {
    const Rows<Left> rows = {moved(a.data, r * a.stride), a.stride, lesser(most_rows, p.m - r)};
    const std::int64_t width = lesser(widest, sums_room / rows.count / lanes * lanes);
    for (std::int64_t j = begin; j < end; j += width) {
      add_columns_of_sums(rows, p.k, moved(b, j), p.b.stride, c + r * p.c.stride + j, p.c.stride,
                          lesser(width, end - j), accumulate);
    }
  }
}

void run_few_rows(const Product& p, bool accumulate, Threads& threads) {
  threads.split(p.n, 16, [&](std::int64_t begin, std::int64_t end) {
    const float* const a = p.a.floats();
    auto* const halves = reinterpret_cast<std::uint16_t*>(p.b.data);
    if (p.a.dtype == graph::DType::bf16) {
      return multiply_part(p, Bfloats{reinterpret_cast<std::uint16_t*>(p.a.data)}, Bfloats{halves}, accumulate, begin,
                           end);
    }
    switch (p.b.dtype) {
      case graph::DType::bf16: return multiply_part(p, a, Bfloats{halves}, accumulate, begin, end);
      case graph::DType::f16: return multiply_part(p, a, Halves16{halves}, accumulate, begin, end);
      default: return multiply_part<const float*, const float*>(p, a, p.b.floats(), accumulate, begin, end);
    }
  });
}

}  // namespace

constinit const FewRowsRunner few_rows_runner = run_few_rows;

}  // namespace shardrun::device::cpu::SHARDRUN_KERNEL_VARIANT
