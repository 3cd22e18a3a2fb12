#pragma once

#include <cstdint>
#include <vector>

#include "core/device/matrices.h"
#include "core/device/threads.h"

namespace shardrun::device::cpu {

/// Whether multiply_few_rows() computes this product: c is float32, a is not transposed, and either a is float32, and b
/// float32, bfloat16 or half precision, or both are bfloat16 and the order of sums is fixed: otherwise a library is as
/// good, or better where it has instructions for matrices. From sizes, types and layout alone.
[[nodiscard]] bool has_few_rows(const Product& product) noexcept;

/// c = a b, plus c if `accumulate`, at the rate at which b can be read from memory. Sums are float32. Threads share the
/// columns of c. The order of an element's sum depends on k, on the types and on whether b is transposed: a row of c
/// has the same bits alone and among others, and on any number of threads. If a and b are bfloat16, some processors
/// take denormal numbers for zero.
void multiply_few_rows(const Product& product, bool accumulate, Threads& threads);

using FewRowsRunner = void (*)(const Product& product, bool accumulate, Threads& threads);
/// multiply_few_rows() for each instruction set that this machine has, if a has this type; it uses the last.
[[nodiscard]] std::vector<FewRowsRunner> few_rows_runners(graph::DType of_a);

}  // namespace shardrun::device::cpu
