#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "tests/kernels/compare.h"

/// Cases whose operands and results are float32 or bfloat16, each independently of the others.
namespace shardrun::test {

/// Which real operands and results of an op are bfloat16; the others are float32.
struct Typing {
  const char* name;
  bool (*operand)(std::size_t number);
  bool (*result)(std::size_t number);
};

inline constexpr Typing all_float32 = {"all float32", [](std::size_t) { return false; },
                                       [](std::size_t) { return false; }};
inline constexpr Typing all_bfloat16 = {"all bfloat16", [](std::size_t) { return true; },
                                        [](std::size_t) { return true; }};
/// All bfloat16 first, then mixtures.
inline constexpr Typing typings[] = {
    all_bfloat16,
    {"float32 results", all_bfloat16.operand, all_float32.result},
    {"float32 operands", all_float32.operand, all_bfloat16.result},
    {"even operands, odd results", [](std::size_t i) { return i % 2 == 0; }, [](std::size_t i) { return i % 2 == 1; }},
    {"odd operands, even results", [](std::size_t i) { return i % 2 == 1; }, [](std::size_t i) { return i % 2 == 0; }}};

[[nodiscard]] Prepared prepare_as(Case test, const Typing& typing);

/// The reference's results before they are rounded to bfloat16.
[[nodiscard]] std::vector<Tensor> unrounded(Prepared prepared);

/// Fills the first result with elements to which the op adds. Returns the results that are then expected,
/// as unrounded().
[[nodiscard]] std::vector<Tensor> expected_sums(Prepared& prepared);

/// Describes what is wrong with the results; "" if nothing is. A bfloat16 result is rounded once more.
[[nodiscard]] std::string typed_difference(const std::vector<Tensor>& found, const std::vector<Tensor>& expected,
                                           Tolerance of_float);

/// Whether the case normalizes rows of one element. The mean is then that element. If the mean is rounded separately,
/// the difference is multiplied by 1 / sqrt(epsilon), and results cannot be compared.
[[nodiscard]] bool normalises_one_element(const Case& test);

/// The last of two shards of a factor if the first one has all indices.
[[nodiscard]] Prepared without_indices(const Prepared& whole, graph::FactorId factor);

}  // namespace shardrun::test
