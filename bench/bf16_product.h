#pragma once

#include <cstdint>
#include <functional>

namespace shardrun::bench {

/// Returns a function that computes C = A * B in bfloat16 by the cpu device's matmul kernel, as a training step runs
/// it. A: [m, k]   B: [k, n]   C: [m, n]
[[nodiscard]] std::function<void()> bf16_product(std::int64_t m, std::int64_t n, std::int64_t k, int threads);

}  // namespace shardrun::bench
