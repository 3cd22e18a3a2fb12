#pragma once

#include <cstdint>
#include <vector>

#include "core/device/matrices.h"
#include "core/device/threads.h"

namespace shardrun::device::cpu {

/// Whether multiply_few_rows() computes this product: a and c are float32, a is not transposed, and b has elements of
/// float32, bfloat16 or half precision. From sizes, types and layout alone.
[[nodiscard]] bool has_few_rows(const Product& product) noexcept;

/// c = a b, plus c if `accumulate`, at the rate at which b can be read from memory. Computes in float32. Threads share
/// the columns of c. The order of an element's sum depends on k and on whether b is transposed: a row of c has the same
/// bits alone and among others, and on any number of threads.
void multiply_few_rows(const Product& product, bool accumulate, Threads& threads);

using FewRowsRunner = void (*)(const Product& product, bool accumulate, Threads& threads);
/// multiply_few_rows() for each instruction set that this machine has; it uses the last.
[[nodiscard]] std::vector<FewRowsRunner> few_rows_runners();

}  // namespace shardrun::device::cpu
