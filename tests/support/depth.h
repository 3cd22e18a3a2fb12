#pragma once

#include <cstddef>

/// How much of long lists of cases a test runs. tests/run runs a part of them, tests/run --all all.
namespace shardrun::test {

inline constexpr bool all_tests = SHARDRUN_TESTS_ALL != 0;

/// A sanitizer takes some ten times as long, and keeps memory of its own, which then counts as the program's.
inline constexpr bool sanitized = SHARDRUN_TESTS_SANITIZED != 0;

/// A count or a stride: `all` for whole lists, else `part`, or `sanitized_part` under a sanitizer.
template <typename Number>
[[nodiscard]] constexpr Number depth(Number all, Number part, Number sanitized_part) {
  return all_tests ? all : sanitized ? sanitized_part : part;
}

}  // namespace shardrun::test
