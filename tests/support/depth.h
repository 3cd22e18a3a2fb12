#pragma once

#include <cstddef>

/// How many cases of a long list a test runs: tests/run runs a part, tests/run --all runs all.
namespace shardrun::test {

inline constexpr bool all_tests = SHARDRUN_TESTS_ALL != 0;

/// Whether a sanitizer is used. It makes tests about ten times slower, and its own memory counts as the program's.
inline constexpr bool sanitized = SHARDRUN_TESTS_SANITIZED != 0;

/// A count or stride: `all` to run whole lists, otherwise `part`, or `sanitized_part` with a sanitizer.
template <typename Number>
[[nodiscard]] constexpr Number depth(Number all, Number part, Number sanitized_part) {
  return all_tests ? all : sanitized ? sanitized_part : part;
}

}  // namespace shardrun::test
