#include "core/device/cpu/few_rows.h"
#include "core/device/cpu/vec.h"

// Products of bfloat16 matrices with AVX512-BF16. An instruction multiplies the terms 2p and 2p + 1 of 16 columns and
// adds the products to sums in float32. It takes denormal numbers for zero, and its results are never denormal.
//
// 16 registers hold 32 terms of 16 columns of b: lane j of register p has the terms 2p and 2p + 1 of column j. If b is
// stored [n, k], a pair of terms is a 32-bit number of a row. These numbers are transposed, and the next terms of the
// same columns follow. If b is stored [k, n], two rows are interleaved. The next columns follow, so that rows are read
// from one end to the other. The same 32 terms of up to 64 rows of a lie side by side in memory, from where the
// instruction broadcasts a pair of them.

namespace shardrun::device::cpu::SHARDRUN_KERNEL_VARIANT {

extern const FewRowsRunner bfloat_rows_runner;

namespace {

constexpr std::int64_t pairs = 16;  // pairs of terms that are multiplied together
constexpr std::int64_t terms_at_once = 2 * pairs;
constexpr std::int64_t depth_of_sum = 256;  // terms added up before their sum is added to c: bounds the rounding error
constexpr std::int64_t rows_of_tile = 64;
constexpr std::int64_t room_of_terms = rows_of_tile * 3 * depth_of_sum;  // activations: a tenth of a second-level cache
constexpr std::int64_t room_of_sums = 4096;                              // floats: half of a first-level cache

std::int64_t smaller(std::int64_t a, std::int64_t b) { return a < b ? a : b; }

const std::uint16_t* bits_of(const Operand& operand) { return reinterpret_cast<const std::uint16_t*>(operand.data); }

__mmask32 mask_of_first(std::int64_t count) {
  return static_cast<__mmask32>((std::uint64_t{1} << static_cast<unsigned>(count)) - 1);
}

/// Copies `terms` terms of some rows of a to `to` [⌈terms / 32⌉, rows, 32]. Terms past the end are zero.
void pack(const Product& p, std::int64_t row, std::int64_t rows, std::int64_t first, std::int64_t terms,
          std::uint16_t* to) {
  for (std::int64_t t = 0; t < terms; t += terms_at_once) {
    const __mmask32 mask = mask_of_first(smaller(terms_at_once, terms - t));
    for (std::int64_t r = 0; r < rows; ++r, to += terms_at_once) {
      _mm512_storeu_si512(to, _mm512_maskz_loadu_epi16(mask, bits_of(p.a) + (row + r) * p.a.stride + first + t));
    }
  }
}

/// The number of columns that are loaded together. If b is stored [k, n], they are a cache line of each row.
std::int64_t columns_at_once(const Product& p) { return p.b.transposed ? lanes : 2 * lanes; }

/// Loads up to 32 terms of up to columns_at_once() columns, in 16 vectors for each 16 columns. Terms and columns past
/// the end are zero.
SHARDRUN_INLINE void load_weights(const Product& p, std::int64_t term, std::int64_t terms, std::int64_t column,
                                  std::int64_t columns, ivec* weights) {
  if (p.b.transposed) {
    const __mmask32 mask = mask_of_first(terms);
    const std::uint16_t* const from = bits_of(p.b) + column * p.b.stride + term;
    for (std::int64_t j = 0; j < lanes; ++j) {
      weights[j] = j < columns ? reinterpret_cast<ivec>(_mm512_maskz_loadu_epi16(mask, from + j * p.b.stride)) : ivec{};
      __builtin_prefetch(from + (j + lanes) * p.b.stride, 0, 2);
    }
    return transpose(weights);
  }
  const __mmask32 mask = mask_of_first(columns);
  const std::uint16_t* const from = bits_of(p.b) + term * p.b.stride + column;
  const auto row = [&](std::int64_t t) {
    __builtin_prefetch(from + (t + terms_at_once) * p.b.stride, 0, 2);
    return t < terms ? _mm512_maskz_loadu_epi16(mask, from + t * p.b.stride) : _mm512_setzero_si512();
  };
  const ivec first_columns = lane_numbers() * 0x10001 + (32 << 16);  // 16-bit numbers j and 32 + j in lane j
  for (std::int64_t i = 0; i < pairs; ++i) {
    const __m512i even = row(2 * i);
    const __m512i odd = row(2 * i + 1);
    const auto of_columns = [&](ivec numbers) {
      return reinterpret_cast<ivec>(_mm512_permutex2var_epi16(even, reinterpret_cast<__m512i>(numbers), odd));
    };
    weights[i] = of_columns(first_columns);
    weights[pairs + i] = of_columns(first_columns + 0x100010);
  }
}

/// Adds the products of a pair of terms. This is inline assembly, because compilers offer the instruction only in
/// functions compiled for CPUs that have it.
SHARDRUN_INLINE void add_pair(ivec weights, const std::uint16_t* pair, vec& sums) {
  asm("vdpbf16ps %2%{1to16%}, %1, %0" : "+v"(sums) : "v"(weights), "m"(*reinterpret_cast<const std::int32_t*>(pair)));
}

/// Adds the products of 32 terms to the sums of some rows. The sums of different rows do not wait for each other.
template <int... row>
SHARDRUN_INLINE void add_pairs(const ivec* weights, const std::uint16_t* a, float* sums, Lanes<row...>) {
  vec of_rows[] = {load(sums + row * lanes, Whole{0})...};
  for (std::int64_t i = 0; i < pairs; ++i) {
    (add_pair(weights[i], a + row * terms_at_once + 2 * i, of_rows[row]), ...);
  }
  (store(sums + row * lanes, Whole{0}, of_rows[row]), ...);
}

/// Adds the products of 32 terms to the sums of all rows.
SHARDRUN_INLINE void add_terms_of_rows(const ivec* weights, const std::uint16_t* a, std::int64_t rows, float* sums) {
  std::int64_t r = 0;
  for (; r + 8 <= rows; r += 8) {
    add_pairs(weights, a + r * terms_at_once, sums + r * lanes, Lanes<0, 1, 2, 3, 4, 5, 6, 7>{});
  }
  for (; r < rows; ++r) {
    add_pairs(weights, a + r * terms_at_once, sums + r * lanes, Lanes<0>{});
  }
}

/// Computes the columns [column, column + columns) of c in all packed rows, or adds to them, from the terms
/// [first, first + terms). REQUIRES: the sums of these columns fit room_of_sums.
void add_columns(const Product& p, const std::uint16_t* packed, std::int64_t rows, std::int64_t first,
                 std::int64_t terms, std::int64_t column, std::int64_t columns, float* c, bool accumulate) {
  alignas(64) float sums[room_of_sums];  // [columns / 16, rows, 16]
  for (std::int64_t begin = 0; begin == 0 || begin < terms; begin += depth_of_sum) {
    const std::int64_t end = smaller(terms, begin + depth_of_sum);
    __builtin_memset(sums, 0, static_cast<std::size_t>((columns + lanes - 1) / lanes * rows * lanes) * sizeof(float));
    for (std::int64_t t = begin; t < end; t += terms_at_once) {
      const std::int64_t width = columns_at_once(p);
      for (std::int64_t j = 0; j < columns; j += width) {
        ivec weights[2 * pairs];
        const std::int64_t loaded = smaller(width, columns - j);
        load_weights(p, first + t, smaller(terms_at_once, end - t), column + j, loaded, weights);
        for (std::int64_t half = 0; half < loaded; half += lanes) {
          add_terms_of_rows(weights + half, packed + t * rows, rows, sums + (j + half) * rows);
        }
      }
    }
    const bool adds = accumulate || begin > 0;
    for (std::int64_t j = 0; j < columns; j += lanes) {
      for (std::int64_t r = 0; r < rows; ++r) {
        const float* const from = sums + j * rows + r * lanes;
        float* const to = c + r * p.c.stride + column + j;
        vectors(0, smaller(lanes, columns - j),
                [=](auto at) { store(to, at, adds ? load(to, at) + load(from, at) : load(from, at)); });
      }
    }
  }
}

void run_bfloat_rows(const Product& p, bool accumulate, Threads& threads) {
  threads.split(p.n, lanes, [&](std::int64_t begin, std::int64_t end) {
    alignas(64) std::uint16_t packed[room_of_terms];
    for (std::int64_t row = 0; row < p.m; row += rows_of_tile) {
      const std::int64_t rows = smaller(rows_of_tile, p.m - row);
      const std::int64_t most = room_of_terms / rows / depth_of_sum * depth_of_sum;
      const std::int64_t width = p.b.transposed ? lanes : room_of_sums / rows / lanes * lanes;
      for (std::int64_t first = 0; first == 0 || first < p.k; first += most) {
        const std::int64_t terms = smaller(most, p.k - first);
        pack(p, row, rows, first, terms, packed);
        for (std::int64_t column = begin; column < end; column += width) {
          add_columns(p, packed, rows, first, terms, column, smaller(width, end - column),
                      p.c.floats() + row * p.c.stride, accumulate || first > 0);
        }
      }
    }
  });
}

}  // namespace

constinit const FewRowsRunner bfloat_rows_runner = run_bfloat_rows;

}  // namespace shardrun::device::cpu::SHARDRUN_KERNEL_VARIANT
