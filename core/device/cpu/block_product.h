#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/device/threads.h"

namespace shardrun::device::cpu {

/// c[m, n] = a[m, k] wᵀ, with weights in blocks of 32 integers that share a scale.
///
/// Each block of 32 activations of a row is rounded, too: d = max|a| / 127 in float32, and each q is a / d, rounded to
/// nearest with ties to even. A block whose d is below the least normal float32 counts as zero. An element of c is the
/// sum over the blocks, in order, of (d · scale) · Σ q w, where Σ q w is exact, d · scale is rounded to float32, and
/// the sum is a chain of fused multiply-adds. So c has the same bits with any m, n, number of threads and instruction
/// set.
struct BlockProduct {
  std::int64_t m;
  std::int64_t n;
  std::int64_t k;  ///< if not a multiple of 32, the last block of each row is shorter
  const float* a;
  std::int64_t a_stride;        ///< elements from one row to the next
  const std::int8_t* w;         ///< [n, k]
  const std::uint16_t* scales;  ///< [n, ⌈k / 32⌉], IEEE half precision
  float* c;
  std::int64_t c_stride;
};

/// Bytes of scratch for two blocks of a row of activations.
inline constexpr std::size_t block_product_pair_bytes = 80;
/// Bytes of scratch in which multiply_blocks() keeps the rounded activations.
[[nodiscard]] std::size_t block_product_scratch(std::int64_t m, std::int64_t k);

/// Computes c. `scratch` has block_product_scratch() bytes, aligned to 64. Threads share the columns of c.
void multiply_blocks(const BlockProduct& product, Threads& threads, std::byte* scratch);

using BlockRunner = void (*)(const BlockProduct& product, Threads& threads, std::byte* scratch);
/// The product for each instruction set that this machine has. multiply_blocks() uses the last.
[[nodiscard]] std::vector<BlockRunner> block_runners();

}  // namespace shardrun::device::cpu
