#pragma once

/// The clock of deadlines, which stands still while the process does.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>

namespace shardrun::sdk {

/// Nanoseconds of CLOCK_MONOTONIC, in which deadlines cross the border between host and plugin.
[[nodiscard]] inline std::int64_t monotonic_now() noexcept {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

/// How much steady_now() advances at most between two looks at it. Whoever waits for a deadline looks at least so
/// often: time in which nobody looked is time in which the process did not run (it was suspended, or frozen, or the
/// machine stood still), or in which it waited for nobody.
inline constexpr std::chrono::nanoseconds longest_gap = std::chrono::milliseconds(100);

namespace detail {

/// Any thread. Two words instead of a lock: whoever spins looks at it, too.
class RunningClock {
 public:
  [[nodiscard]] std::int64_t now() noexcept {
    for (;;) {
      std::int64_t behind = behind_.load();
      std::int64_t seen = seen_.load();
      const std::int64_t now = monotonic_now() - behind;
      if (seen == never) {
        seen_.compare_exchange_strong(seen, now);
      } else if (const std::int64_t gap = now - seen; gap > longest_gap.count()) {
        // One thread alone leaves the gap out: for the others `behind` is another then.
        if (behind_.compare_exchange_strong(behind, behind + gap - longest_gap.count())) {
          return advance(seen, seen + longest_gap.count());
        }
      } else if (behind_.load() == behind) {
        return gap < worth_noting ? now : advance(seen, now);
      }
    }
  }

  /// How far it is behind CLOCK_MONOTONIC.
  [[nodiscard]] std::int64_t behind() noexcept {
    static_cast<void>(now());
    return behind_.load();
  }

 private:
  static constexpr std::int64_t never = INT64_MIN;
  static constexpr std::int64_t worth_noting = 1'000'000;  ///< less is not worth a write that others spin on

  std::int64_t advance(std::int64_t seen, std::int64_t now) noexcept {
    while (seen < now && !seen_.compare_exchange_weak(seen, now)) {
    }
    return now;
  }

  std::atomic<std::int64_t> behind_ = 0;
  std::atomic<std::int64_t> seen_ = never;
};

/// One for each plugin: nothing is shared over the border.
inline RunningClock& running_clock() noexcept {
  static RunningClock clock;
  return clock;
}

}  // namespace detail

/// Now, as deadlines count it: CLOCK_MONOTONIC without the time in which nobody looked at it.
[[nodiscard]] inline std::int64_t steady_now() noexcept { return detail::running_clock().now(); }

/// A deadline that crossed the border, as steady_now() counts it. That of no end, and one that is past in any case,
/// stay what they are.
[[nodiscard]] inline std::int64_t from_border(std::int64_t deadline) noexcept {
  return deadline == INT64_MAX || deadline <= 0 ? deadline : deadline - detail::running_clock().behind();
}

/// The same in the other direction. It holds from now on: what is left of it is what is left of the deadline.
[[nodiscard]] inline std::int64_t to_border(std::int64_t deadline) noexcept {
  return deadline == INT64_MAX || deadline <= 0 ? deadline : deadline + detail::running_clock().behind();
}

/// How long to wait at once for something that must be there by `deadline`.
[[nodiscard]] inline std::chrono::nanoseconds slice_until(std::int64_t deadline) noexcept {
  const std::int64_t now = steady_now();
  return std::clamp(std::chrono::nanoseconds(deadline - std::min(deadline, now)), std::chrono::nanoseconds(0),
                    longest_gap / 2);
}

}  // namespace shardrun::sdk
