#pragma once

#include <cstdint>
#include <functional>

namespace shardrun::bench {

/// C = A * B in bfloat16 by the cpu's kernel of matmul, as a step of training runs it.
[[nodiscard]] std::function<void()> bf16_product(std::int64_t m, std::int64_t n, std::int64_t k, int threads);

}  // namespace shardrun::bench
