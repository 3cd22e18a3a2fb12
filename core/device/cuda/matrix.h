#pragma once

#include <cstdint>

#include "core/device/cuda/block.h"
#include "core/device/cuda/values.h"

/// Products of small bfloat16 matrices by a warp, with the tensor cores of GPUs (sm_80 and later). Each lane holds a
/// part of each matrix, its fragment. With g = lane / 4 and t = lane % 4, a lane holds
/// - of a [16, 16]: rows g and g + 8, columns 2 t, 2 t + 1, 2 t + 8 and 2 t + 9
/// - of b [16, 8]: rows 2 t, 2 t + 1, 2 t + 8 and 2 t + 9 of column g
/// - of c [16, 8]: rows g and g + 8, columns 2 t and 2 t + 1.
namespace shardrun::device::cuda {

/// Each word holds two elements, the first in the lower half.
struct FragmentA {
  std::uint32_t words[4];  ///< (g, 2t), (g + 8, 2t), (g, 2t + 8), (g + 8, 2t + 8)
};
struct FragmentB {
  std::uint32_t words[2];  ///< (2t, g), (2t + 8, g)
};
struct FragmentC {
  float of[4];  ///< (g, 2t), (g, 2t + 1), (g + 8, 2t), (g + 8, 2t + 1)
};

/// Eight bfloat16 numbers: a row of an 8 x 8 matrix in shared memory.
struct alignas(16) Eight {
  std::uint32_t words[4];
};

/// Four 8 x 8 matrices, loaded as parts of fragments. Word m of a lane holds columns 2 t and 2 t + 1 of row g of matrix
/// m; if they are loaded transposed, rows 2 t and 2 t + 1 of column g. Lane 8 m + r gives the place of row r of matrix
/// m: data[index].
struct FourMatrices {
  std::uint32_t words[4];
};

#if defined(__CUDACC__)

/// c += a b, with sums in float32.
SHARDRUN_ON_DEVICE inline void multiply_add(Block&, const FragmentA& a, const FragmentB& b, FragmentC& c) {
#if defined(__CUDA_ARCH__)
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c.of[0]), "+f"(c.of[1]), "+f"(c.of[2]), "+f"(c.of[3])
      : "r"(a.words[0]), "r"(a.words[1]), "r"(a.words[2]), "r"(a.words[3]), "r"(b.words[0]), "r"(b.words[1]));
#endif
}

template <bool transposed>
[[nodiscard]] SHARDRUN_ON_DEVICE inline FourMatrices load_matrices(Block&, const Shared<Eight>& data, int index) {
  FourMatrices found = {};
#if defined(__CUDA_ARCH__)
  const auto address = static_cast<std::uint32_t>(__cvta_generic_to_shared(&data[index]));
  if constexpr (transposed) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(found.words[0]), "=r"(found.words[1]), "=r"(found.words[2]), "=r"(found.words[3])
                 : "r"(address)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(found.words[0]), "=r"(found.words[1]), "=r"(found.words[2]), "=r"(found.words[3])
                 : "r"(address)
                 : "memory");
  }
#endif
  return found;
}

#else

namespace emulated {
void multiply_add(Strand& strand, const FragmentA& a, const FragmentB& b, FragmentC& c, Where where);
FourMatrices load_matrices(Strand& strand, const Eight& row, bool transposed, Where where);
}  // namespace emulated

inline void multiply_add(Block& block, const FragmentA& a, const FragmentB& b, FragmentC& c,
                         emulated::Where where = {__builtin_FILE(), __builtin_LINE()}) {
  emulated::multiply_add(block.strand(), a, b, c, where);
}
template <bool transposed>
[[nodiscard]] inline FourMatrices load_matrices(Block& block, const Shared<Eight>& data, int index,
                                                emulated::Where where = {__builtin_FILE(), __builtin_LINE()}) {
  return emulated::load_matrices(block.strand(), data[index], transposed, where);
}

#endif

/// Loads rows [row, row + 16) and columns [8 column, 8 column + 16) of a matrix in shared memory, which begins at
/// data[begin] and whose rows are `stride` Eights apart. `column` counts Eights.
template <int stride>
[[nodiscard]] SHARDRUN_ON_DEVICE inline FragmentA load_a(Block& block, const Shared<Eight>& data, int begin, int row,
                                                         int column) {
  const int lane = block.lane();
  const FourMatrices four = load_matrices<false>(block, data, begin + (row + lane % 16) * stride + column + lane / 16);
  return {{four.words[0], four.words[1], four.words[2], four.words[3]}};
}
/// Like load_a(), for a matrix that is stored transposed: its columns are the stored rows from `row` on, its rows the
/// stored columns from 8 `column` on.
template <int stride>
[[nodiscard]] SHARDRUN_ON_DEVICE inline FragmentA load_transposed_a(Block& block, const Shared<Eight>& data, int begin,
                                                                    int row, int column) {
  const int lane = block.lane();
  const int at = begin + (row + lane % 8 + lane / 16 * 8) * stride + column + lane / 8 % 2;
  const FourMatrices four = load_matrices<true>(block, data, at);
  return {{four.words[0], four.words[1], four.words[2], four.words[3]}};
}

/// Two neighbouring fragments: columns [0, 8) and [8, 16).
struct TwoB {
  FragmentB of[2];
};
/// Loads from a matrix that is stored transposed, as for load_transposed_a().
template <int stride>
[[nodiscard]] SHARDRUN_ON_DEVICE inline TwoB load_transposed_b(Block& block, const Shared<Eight>& data, int begin,
                                                               int row, int column) {
  const int lane = block.lane();
  const int at = begin + (row + lane % 8 + lane / 16 * 8) * stride + column + lane / 8 % 2;
  const FourMatrices four = load_matrices<false>(block, data, at);
  return {{{{four.words[0], four.words[1]}}, {{four.words[2], four.words[3]}}}};
}
/// Loads from a matrix that is not transposed: rows [row, row + 16), columns [8 column, 8 column + 16).
template <int stride>
[[nodiscard]] SHARDRUN_ON_DEVICE inline TwoB load_b(Block& block, const Shared<Eight>& data, int begin, int row,
                                                    int column) {
  const int lane = block.lane();
  const FourMatrices four = load_matrices<true>(block, data, begin + (row + lane % 16) * stride + column + lane / 16);
  return {{{{four.words[0], four.words[1]}}, {{four.words[2], four.words[3]}}}};
}

}  // namespace shardrun::device::cuda
