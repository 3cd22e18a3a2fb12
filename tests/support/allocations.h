#pragma once

#include <cstdint>

namespace shardrun::test {

/// How often operator new was called so far, by any thread of a test that is built with allocations.cpp.
[[nodiscard]] std::uint64_t allocations() noexcept;

}  // namespace shardrun::test
