#pragma once

/// The clock for deadlines. It stands still while the process does.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <mutex>
#include <utility>

namespace shardrun::sdk {

/// Nanoseconds of CLOCK_MONOTONIC, the unit of deadlines between host and plugin.
[[nodiscard]] inline std::int64_t monotonic_now() noexcept {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

/// The most that steady_now() advances between two reads of it. A thread that waits for a deadline reads it at least
/// this often. So a longer gap means that the process did not run (it was suspended, or the machine was), or waited for
/// no one; the clock leaves it out. A wait inside another plugin reads that plugin's clock and not this one, so such
/// waits are cut into slices too.
inline constexpr std::chrono::nanoseconds longest_gap = std::chrono::milliseconds(100);

namespace detail {

struct MonotonicSource {
  std::int64_t operator()() const noexcept { return monotonic_now(); }
};

/// Nanoseconds of `Source` without the gaps between reads. Never goes backwards. Any thread. Only tests use another
/// `Source` than MonotonicSource.
template <class Source = MonotonicSource>
class RunningClock {
 public:
  RunningClock() = default;
  explicit RunningClock(Source source) : source_(std::move(source)) {}

  /// Takes the lock at most once a millisecond, since spinning threads read it too.
  [[nodiscard]] std::int64_t now() noexcept {
    const std::int64_t behind = behind_.load();
    const std::int64_t seen = seen_.load();
    if (seen != never) {
      const std::int64_t now = source_() - behind;
      // If another thread left out a gap meanwhile, this time would be too late.
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

  /// Never, or a time before any process: the same by every clock.
  static bool is_fixed(std::int64_t deadline) noexcept { return deadline == INT64_MAX || deadline <= 0; }

  /// The clock changes only here, under the lock, so that no thread leaves out time that another one has read.
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

/// One for each plugin. The host and its plugins do not share it.
inline RunningClock<>& running_clock() noexcept {
  static RunningClock<> clock;
  return clock;
}

}  // namespace detail

/// Now, for comparing with deadlines: CLOCK_MONOTONIC without the gaps between reads.
[[nodiscard]] inline std::int64_t steady_now() noexcept { return detail::running_clock().now(); }

/// Converts a deadline from the other side of the interface to this clock. INT64_MAX (never) and deadlines of 0 or less
/// (past) are the same on both sides.
[[nodiscard]] inline std::int64_t from_border(std::int64_t deadline) noexcept {
  return detail::running_clock().from_border(deadline);
}

/// Converts a deadline of this clock for the other side. Convert at the time of the call: a later gap makes the result
/// wrong.
[[nodiscard]] inline std::int64_t to_border(std::int64_t deadline) noexcept {
  return detail::running_clock().to_border(deadline);
}

/// The deadline of what may take `timeout` nanoseconds from `time` on. INT64_MAX: it has none.
[[nodiscard]] inline std::int64_t deadline_after(std::int64_t time, std::int64_t timeout) noexcept {
  return timeout > INT64_MAX - time ? INT64_MAX : time + timeout;
}

/// How long a single wait may take, for something due by `deadline`.
[[nodiscard]] inline std::chrono::nanoseconds slice_until(std::int64_t deadline) noexcept {
  const std::int64_t now = steady_now();
  return std::clamp(std::chrono::nanoseconds(deadline - std::min(deadline, now)), std::chrono::nanoseconds(0),
                    longest_gap / 2);
}

}  // namespace shardrun::sdk
