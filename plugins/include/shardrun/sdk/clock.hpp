#pragma once

/// The clock of deadlines, which stands still while the process does.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <utility>

namespace shardrun::sdk {

/// Nanoseconds of CLOCK_MONOTONIC, in which deadlines cross the border between host and plugin.
[[nodiscard]] inline std::int64_t monotonic_now() noexcept {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

/// How much steady_now() advances at most between two looks at it. Whoever waits for a deadline looks at least so
/// often: time in which nobody looked is time in which the process did not run (it was suspended, or frozen, or the
/// machine stood still), or in which it waited for nobody. A wait inside another plugin looks at that plugin's clock
/// and not at this one: it is cut into slices, too.
inline constexpr std::chrono::nanoseconds longest_gap = std::chrono::milliseconds(100);

namespace detail {

struct MonotonicSource {
  std::int64_t operator()() const noexcept { return monotonic_now(); }
};

/// Nanoseconds of `Source` without the time in which nobody looked. Never goes backwards. Any thread. `Source` is
/// another than MonotonicSource in tests alone.
template <class Source = MonotonicSource>
class RunningClock {
 public:
  RunningClock() = default;
  explicit RunningClock(Source source) : source_(std::move(source)) {}

  /// Takes the lock at most once a millisecond, since threads that spin look at it, too.
  [[nodiscard]] std::int64_t now() noexcept {
    const std::int64_t behind = behind_.load();
    const std::int64_t seen = seen_.load();
    if (seen != never) {
      const std::int64_t now = source_() - behind;
      // A gap that another thread leaves out meanwhile would make this time too late.
      if (now - seen < worth_noting && behind_.load() == behind) {
        return now;
      }
    }
    return note();
  }

  /// How far it is behind its source.
  [[nodiscard]] std::int64_t behind() noexcept {
    static_cast<void>(now());
    return behind_.load();
  }

  [[nodiscard]] std::int64_t from_border(std::int64_t deadline) noexcept {
    return is_fixed(deadline) ? deadline : deadline - behind();
  }

  [[nodiscard]] std::int64_t to_border(std::int64_t deadline) noexcept {
    return is_fixed(deadline) ? deadline : deadline + behind();
  }

 private:
  static constexpr std::int64_t never = INT64_MIN;
  static constexpr std::int64_t worth_noting = 1'000'000;

  /// No end, or a time before any process: the same by every clock.
  static bool is_fixed(std::int64_t deadline) noexcept { return deadline == INT64_MAX || deadline <= 0; }

  /// Only here the clock is changed, so that no thread leaves out what another one has looked at.
  std::int64_t note() noexcept {
    const std::lock_guard lock(noting_);
    const std::int64_t seen = seen_.load();
    std::int64_t now = source_() - behind_.load();
    if (seen != never && now - seen > longest_gap.count()) {
      const std::int64_t capped = seen + longest_gap.count();
      behind_.fetch_add(now - capped);
      now = capped;
    }
    seen_.store(now);
    return now;
  }

  Source source_ = {};
  std::mutex noting_;
  std::atomic<std::int64_t> behind_ = 0;
  std::atomic<std::int64_t> seen_ = never;
};

/// One for each plugin: nothing is shared over the border.
inline RunningClock<>& running_clock() noexcept {
  static RunningClock<> clock;
  return clock;
}

}  // namespace detail

/// Now, as deadlines count it: CLOCK_MONOTONIC without the time in which nobody looked at it.
[[nodiscard]] inline std::int64_t steady_now() noexcept { return detail::running_clock().now(); }

/// A deadline that crossed the border, as steady_now() counts it. INT64_MAX (no end) and deadlines of 0 or less (past)
/// are the same on both sides.
[[nodiscard]] inline std::int64_t from_border(std::int64_t deadline) noexcept {
  return detail::running_clock().from_border(deadline);
}

/// The same in the other direction. Convert when the call is made: the result is right as long as no time is left out.
[[nodiscard]] inline std::int64_t to_border(std::int64_t deadline) noexcept {
  return detail::running_clock().to_border(deadline);
}

/// How long to wait at once for something that must be there by `deadline`.
[[nodiscard]] inline std::chrono::nanoseconds slice_until(std::int64_t deadline) noexcept {
  const std::int64_t now = steady_now();
  return std::clamp(std::chrono::nanoseconds(deadline - std::min(deadline, now)), std::chrono::nanoseconds(0),
                    longest_gap / 2);
}

}  // namespace shardrun::sdk
