#pragma once

#include <cstddef>

#include "core/device/cpu/product.h"

namespace shardrun::device::cpu {

/// c = a b (+ c, if accumulate) for any types of operands and result. Blocks of bfloat16 operands are widened in
/// scratch and multiplied in float32; each result is rounded once.
void multiply_widened(const Product& product, bool accumulate, Threads& threads, std::byte* scratch);

/// Bytes of scratch of each thread that has a part of the product's tiles (`sgemm_tiles`).
[[nodiscard]] std::size_t widened_scratch_bytes(const Product& product);

}  // namespace shardrun::device::cpu
