#pragma once

#include <cstdint>

namespace shardrun::test {

/// While one lives, allocations of its thread are not counted: those of a fake.
class Uncounted {
 public:
  Uncounted() noexcept { ++depth(); }
  Uncounted(const Uncounted&) = delete;
  Uncounted& operator=(const Uncounted&) = delete;
  ~Uncounted() { --depth(); }

  [[nodiscard]] static int& depth() noexcept {
    static thread_local int depth = 0;
    return depth;
  }
};

/// How often operator new was called so far, by any thread of a test that is built with allocations.cpp.
[[nodiscard]] std::uint64_t allocations() noexcept;
/// By the calling thread.
[[nodiscard]] std::uint64_t own_allocations() noexcept;

}  // namespace shardrun::test
