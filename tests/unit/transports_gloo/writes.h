#pragma once

#include <atomic>
#include <cstdint>

namespace shardrun::test {

/// What this program's threads write to sockets by `writev`, as Gloo does.
struct Writes {
  std::atomic<int> count = 0;
  std::atomic<int> exposed = 0;  ///< of them: with SIGPIPE not blocked
  std::atomic<std::int64_t> room =
      INT64_MAX;  ///< bytes that long writes still get through; then they have to be retried
};

[[nodiscard]] Writes& writes() noexcept;

/// Whether SIGPIPE is blocked for this thread.
[[nodiscard]] bool is_sigpipe_blocked() noexcept;

}  // namespace shardrun::test
