#pragma once

#include <cstdint>

namespace shardrun::test {

/// While an object exists, allocations of its thread are not counted. Fakes use it for their own allocations.
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

/// How often any thread has called operator new so far. REQUIRES: the test is built with allocations.cpp.
[[nodiscard]] std::uint64_t allocations() noexcept;
/// How often the calling thread has called operator new so far.
[[nodiscard]] std::uint64_t own_allocations() noexcept;

}  // namespace shardrun::test
