#include "core/device/cpu/block_product.h"

#include "core/device/cpu/vec.h"

// A tile is up to `tile_columns` columns of c and `most_rows` rows. Two blocks of its weights are loaded at a time. For
// vectors they are transposed: lane j gets four consecutive weights of column j. Instructions multiply them by four
// activations of a row and add the products, exactly:
// - AVX-512 VNNI multiplies unsigned bytes by signed ones. Adding 128 makes the weights unsigned, and each sum begins
//   with -128 Σ q to make up for that.
// - AVX2 also multiplies unsigned bytes by signed ones. It adds pairs of products in 16-bit integers, which saturate.
//   The bytes are |w| and q · sign(w), so that no pair of products is too large: 2 · 128 · 127 < 2^15.

namespace shardrun::device::cpu::SHARDRUN_KERNEL_VARIANT {

extern const BlockRunner block_runner;

namespace {

constexpr std::int64_t block_width = 32;
constexpr std::int64_t pair_width = 2 * block_width;
constexpr std::int64_t most_rows = 64;
constexpr std::int64_t scales_at_once = lanes;  // blocks whose scales are converted together
constexpr std::int64_t tile_columns = SHARDRUN_VECTOR_BYTES == 16 ? 8 : lanes;

using bytevec = std::int8_t __attribute__((vector_size(lanes)));

std::int64_t lower_of(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

/// Two blocks of a row of activations as integers. Those past the end of the row are zero.
struct RoundedPair {
  std::int32_t q[pair_width / 4];  ///< four bytes each
  float d[2];
  std::int32_t offset[2];  ///< -128 Σ q
};
static_assert(sizeof(RoundedPair) == block_product_pair_bytes);

void round_block(const float* a, std::int64_t count, std::int64_t half, RoundedPair& to) {
  auto* const q = reinterpret_cast<std::int8_t*>(to.q) + half * block_width;
  const float most = count <= 0 ? 0.0F : largest_of(count, [=](auto at) {
    const vec v = load(a, at);
    return v < 0 ? -v : v;
  });
  const float scale = most / 127;
  std::int32_t sum = 0;
  __builtin_memset(q, 0, block_width);
  if (scale >= __FLT_MIN__ && scale <= __FLT_MAX__) {
    ivec total = {};
    vectors(0, count, [&](auto at) {
      constexpr float shift = 0x1.8p23F;  // adding this rounds a small number to an integer
      const ivec bits = __builtin_bit_cast(ivec, load(a, at) / scale + shift);
      const auto bytes = __builtin_convertvector(bits, bytevec);
      __builtin_memcpy(q + at.begin, &bytes, sizeof(bytes));
      total += (bits << 24) >> 24;
    });
    alignas(64) std::int32_t each[lanes];
    __builtin_memcpy(each, &total, sizeof(total));
    for (const std::int32_t part : each) {
      sum += part;
    }
  }
  to.d[half] = scale < __FLT_MIN__ ? 0.0F : scale;
  to.offset[half] = -128 * sum;
}

/// Two blocks of a tile's weights.
struct WeightPair {
  const std::int8_t* first;  ///< the weights of the first column
  std::int64_t stride;
  std::int64_t columns;
  std::int64_t terms;  ///< at most pair_width
};

#if SHARDRUN_VECTOR_BYTES == 64

using Bytes = __m512i;

SHARDRUN_INLINE Bytes load_column(const WeightPair& of, std::int64_t column) {
  if (column >= of.columns) {
    return _mm512_setzero_si512();
  }
  const std::int8_t* const from = of.first + column * of.stride;
  const Bytes offset = _mm512_set1_epi8(-128);
  if (of.terms == pair_width) {
    return _mm512_xor_si512(_mm512_loadu_si512(from), offset);
  }
  return _mm512_xor_si512(_mm512_maskz_loadu_epi8((std::uint64_t{1} << of.terms) - 1U, from), offset);
}

/// Two blocks of 16 columns as unsigned bytes: lane j of four[g] has the weights 4g to 4g + 3 of column j.
struct TransposedPair {
  SHARDRUN_INLINE explicit TransposedPair(const WeightPair& of) {
    for (std::int64_t j = 0; j < 16; ++j) {
      four[j] = reinterpret_cast<ivec>(load_column(of, j));
    }
    transpose(four);
  }

  /// Σ q w of each column.
  SHARDRUN_INLINE ivec dots(const RoundedPair& row, int half) const {
    __m512i sums = _mm512_set1_epi32(row.offset[half]);
    for (int g = 0; g < 8; ++g) {
      // Inline assembly, because compilers offer the instruction only in functions compiled for CPUs that have it, and
      // a lambda cannot be such a function.
      asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sums) : "v"(four[8 * half + g]), "m"(row.q[8 * half + g]));
    }
    return reinterpret_cast<ivec>(sums);
  }

  ivec four[16];
};

#elif SHARDRUN_VECTOR_BYTES == 32

using Bytes = __m256i;

SHARDRUN_INLINE Bytes load_column(const WeightPair& of, std::int64_t column, int half) {
  const std::int64_t terms = of.terms - half * block_width;
  if (column >= of.columns || terms <= 0) {
    return _mm256_setzero_si256();
  }
  const std::int8_t* const from = of.first + column * of.stride + half * block_width;
  if (terms >= block_width) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  }
  Bytes some = _mm256_setzero_si256();
  __builtin_memcpy(&some, from, static_cast<std::size_t>(terms));
  return some;
}

/// Two blocks of 8 columns: lane j of four[g] has the weights 4g to 4g + 3 of column j.
struct TransposedPair {
  SHARDRUN_INLINE explicit TransposedPair(const WeightPair& of) {
    for (int half = 0; half < 2; ++half) {
      for (std::int64_t j = 0; j < 8; ++j) {
        four[8 * half + j] = reinterpret_cast<ivec>(load_column(of, j, half));
      }
      transpose(four + 8 * half);
    }
  }

  SHARDRUN_INLINE ivec dots(const RoundedPair& row, int half) const {
    Bytes sums = _mm256_setzero_si256();
    for (int g = 8 * half; g < 8 * half + 8; ++g) {
      const auto weights = reinterpret_cast<Bytes>(four[g]);
      const Bytes q = _mm256_sign_epi8(_mm256_set1_epi32(row.q[g]), weights);
      const Bytes pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(weights), q);
      sums = _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
    }
    return reinterpret_cast<ivec>(sums);
  }

  ivec four[16];
};

#else

/// Two blocks of 8 columns, where they are stored.
struct TransposedPair {
  explicit TransposedPair(const WeightPair& pair) : of(pair) {}

  [[nodiscard]] std::int32_t dot(const RoundedPair& row, std::int64_t half, std::int64_t column) const {
    const std::int8_t* const w = of.first + column * of.stride;
    const auto* const q = reinterpret_cast<const std::int8_t*>(row.q);
    std::int32_t sum = 0;
    for (std::int64_t i = half * block_width; i < lower_of(of.terms, (half + 1) * block_width); ++i) {
      sum += q[i] * w[i];
    }
    return sum;
  }

  WeightPair of;
};

#endif

/// Adds the products of one of the two blocks to the sums of a row.
SHARDRUN_INLINE void add_block_of_row(const TransposedPair& pair, const RoundedPair& row, int half, const float* scales,
                                      float* sums) {
#if SHARDRUN_VECTOR_BYTES > 16
  const vec exact = __builtin_convertvector(pair.dots(row, half), vec);
  const vec scale = load(scales, Whole{0}) * row.d[half];
  store(sums, Whole{0}, load(sums, Whole{0}) + scale * exact);
#else
  for (std::int64_t j = 0; j < pair.of.columns; ++j) {
    sums[j] = __builtin_fmaf(row.d[half] * scales[j], static_cast<float>(pair.dot(row, half, j)), sums[j]);
  }
#endif
}

/// Writes the scales of the blocks from `first` on to `to` [scales_at_once, tile_columns]. Others have no meaning.
SHARDRUN_INLINE void widen_scales(const BlockProduct& p, std::int64_t blocks, std::int64_t column, std::int64_t columns,
                                  std::int64_t first, float* to) {
  const std::int64_t count = lower_of(scales_at_once, blocks - first);
  const auto load_scales = [&](std::int64_t j) {
    const std::int64_t at = (column + j) * blocks + first;
    const bool whole = at + scales_at_once <= p.n * blocks;  // the last of these can be the next column's
    return whole ? load(Halves16{p.scales}, Whole{at}) : load(Halves16{p.scales}, Part{at, count});
  };
#if SHARDRUN_VECTOR_BYTES > 16
  vec of_columns[tile_columns] = {};
  for (std::int64_t j = 0; j < columns; ++j) {
    of_columns[j] = load_scales(j);
  }
  transpose(of_columns);
  __builtin_memcpy(to, of_columns, sizeof(of_columns));
#else
  for (std::int64_t j = 0; j < columns; ++j) {
    const vec scales = load_scales(j);
    for (std::int64_t b = 0; b < count; ++b) {
      to[b * tile_columns + j] = scales[b];
    }
  }
#endif
}

/// Begins to move a tile's cache lines of these two blocks into the second-level cache.
SHARDRUN_INLINE void fetch_pair(const WeightPair& pair) {
  for (std::int64_t j = 0; j < tile_columns; ++j) {
    __builtin_prefetch(pair.first + j * pair.stride, 0, 2);
  }
}

/// Computes at most tile_columns columns of c, from `column` on. `a` has the rounded activations of the tile's rows.
void multiply_tile_of_blocks(const BlockProduct& p, std::int64_t rows, const RoundedPair* a, std::int64_t a_stride,
                             std::int64_t column, float* c) {
  const std::int64_t blocks = (p.k + block_width - 1) / block_width;
  const std::int64_t columns = lower_of(tile_columns, p.n - column);
  alignas(64) float sums[most_rows * tile_columns];
  alignas(64) float scales[scales_at_once * tile_columns];
  __builtin_memset(sums, 0, static_cast<std::size_t>(rows * tile_columns) * sizeof(float));
  for (std::int64_t b = 0; b < blocks; b += 2) {
    if (b % scales_at_once == 0) {
      widen_scales(p, blocks, column, columns, b, scales);
    }
    const std::int8_t* const first = p.w + column * p.k + b * block_width;
    fetch_pair({first + tile_columns * p.k, p.k, columns, pair_width});
    const TransposedPair pair({first, p.k, columns, lower_of(pair_width, p.k - b * block_width)});
    const RoundedPair* const of_pair = a + b / 2 * a_stride;
    const float* const scale = scales + b % scales_at_once * tile_columns;
    for (std::int64_t i = 0; i < rows; ++i) {
      float* const sums_of_row = sums + i * tile_columns;
      add_block_of_row(pair, of_pair[i], 0, scale, sums_of_row);
      if (b + 1 < blocks) {
        add_block_of_row(pair, of_pair[i], 1, scale + tile_columns, sums_of_row);
      }
    }
  }
  for (std::int64_t i = 0; i < rows; ++i) {
    for (std::int64_t j = 0; j < columns; ++j) {
      c[i * p.c_stride + column + j] = sums[i * tile_columns + j];
    }
  }
}

void run_blocks(const BlockProduct& p, Threads& threads, std::byte* scratch) {
  const std::int64_t pairs = (p.k + pair_width - 1) / pair_width;
  auto* const a = reinterpret_cast<RoundedPair*>(scratch);  // [pairs, m]
  threads.split(p.m * pairs, 64, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const float* const from = p.a + i % p.m * p.a_stride + i / p.m * pair_width;
      const std::int64_t left = p.k - i / p.m * pair_width;
      round_block(from, lower_of(left, block_width), 0, a[i]);
      round_block(from + block_width, lower_of(left - block_width, block_width), 1, a[i]);
    }
  });
  threads.split(p.n, 16, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t row = 0; row < p.m; row += most_rows) {
      for (std::int64_t column = begin; column < end; column += tile_columns) {
        multiply_tile_of_blocks(p, lower_of(most_rows, p.m - row), a + row, p.m, column, p.c + row * p.c_stride);
      }
    }
  });
}

}  // namespace

constinit const BlockRunner block_runner = run_blocks;

}  // namespace shardrun::device::cpu::SHARDRUN_KERNEL_VARIANT
