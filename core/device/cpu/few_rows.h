#pragma once

#include <cstdint>
#include <vector>

#include "core/device/matrices.h"
#include "core/device/threads.h"

namespace shardrun::device::cpu {

/// Whether multiply_few_rows() computes this product: c is float32, a is not transposed, and one of these holds:
///  - a is float32, and b is bfloat16 or half precision;
///  - a and b are float32, and the order of sums is fixed, or a has few rows and b is not small;
///  - a and b are bfloat16, and the order of sums is fixed. Otherwise a library is as fast, or faster.
[[nodiscard]] bool has_few_rows(const Product& product) noexcept;

/// c = a b, plus c if `accumulate`. Sums are float32. On one machine, their order depends only on k, the types and
/// whether b is transposed, so that a row of c has the same bits alone and among others. Threads share the columns of
/// c. If a and b are bfloat16, some processors take denormal numbers for zero.
void multiply_few_rows(const Product& product, bool accumulate, Threads& threads);

using FewRowsRunner = void (*)(const Product& product, bool accumulate, Threads& threads);
/// The product, with a of this type, for each instruction set of this machine. multiply_few_rows() uses the last.
[[nodiscard]] std::vector<FewRowsRunner> few_rows_runners(graph::DType of_a);

}  // namespace shardrun::device::cpu
