#pragma once

/// The clock for deadlines. It stops while the process does not run.

#include <algorithm>
#include <atomic>
#include <chrono>
#include <compare>
#include <cstdint>
#include <mutex>
#include <utility>

namespace shardrun::sdk {

/// Nanoseconds of CLOCK_MONOTONIC, the unit of deadlines between host and plugin.
[[nodiscard]] inline std::int64_t monotonic_now() noexcept {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

/// The longest time that the clock advances between two readings. A thread that waits for a deadline reads the clock at
/// least this often. So a longer gap means that the process did not run (it or the machine was suspended), or that
/// nothing waited; the clock leaves out the rest of the gap. A wait inside another plugin reads that plugin's clock and
/// not this one, so such waits are cut into slices, too.
inline constexpr std::chrono::nanoseconds longest_gap = std::chrono::milliseconds(100);

namespace detail {

/// Nanoseconds of `Source` without the long gaps between readings. Never goes backwards. Any thread may use it. Only
/// tests use a source other than monotonic_now().
template <class Source>
class RunningClock {
 public:
  constexpr explicit RunningClock(Source source) : source_(std::move(source)) {}

  /// Takes the lock at most once a millisecond, because spinning threads call it, too.
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

  /// The nanoseconds by which this clock is behind its source.
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

  /// Whether a deadline is INT64_MAX (never) or at most 0 (past). Such a deadline is the same by every clock.
  static bool is_fixed(std::int64_t deadline) noexcept { return deadline == INT64_MAX || deadline <= 0; }

  /// Changes the clock. It changes only here, under the lock, so that no thread leaves out time that another has read.
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

  Source source_;
  std::mutex noting_;
  std::atomic<std::int64_t> behind_ = 0;
  std::atomic<std::int64_t> seen_ = never;
};

/// The clock of this plugin. The host and its plugins do not share a clock.
inline auto& running_clock() noexcept {
  static constinit RunningClock clock(&monotonic_now);
  return clock;
}

}  // namespace detail

/// A time of this plugin's clock by which something is due. The clock is CLOCK_MONOTONIC without long gaps between
/// readings. It falls behind whenever the process is suspended, so a wait of the operating system must not be given
/// such a time. Wait in slices:
///
///     while (!is_done && !deadline.passed()) {
///       changed.wait_for(lock, deadline.slice());
///     }
class Deadline {
 public:
  /// A deadline that never passes.
  constexpr Deadline() = default;
  [[nodiscard]] static constexpr Deadline never() noexcept { return {}; }
  /// A deadline long ago: asking about it reads no clock.
  [[nodiscard]] static constexpr Deadline past() noexcept { return Deadline(0); }
  [[nodiscard]] static Deadline now() noexcept { return Deadline(detail::running_clock().now()); }

  /// Converts a deadline of the C interface.
  [[nodiscard]] static Deadline from_border(std::int64_t deadline) noexcept {
    return Deadline(std::max<std::int64_t>(0, detail::running_clock().from_border(deadline)));
  }
  /// Converts to the C interface's form. Do it right before the call: a later gap makes the result wrong.
  [[nodiscard]] std::int64_t to_border() const noexcept { return detail::running_clock().to_border(time_); }

  [[nodiscard]] bool passed() const noexcept { return time_ <= 0 || (*this != never() && *this <= now()); }
  /// The time left: 0 once it has passed; nanoseconds::max() for never.
  [[nodiscard]] std::chrono::nanoseconds left() const noexcept {
    return *this == never() ? std::chrono::nanoseconds::max() : *this - std::min(*this, now());
  }
  /// The longest time that a single wait for this deadline may take.
  [[nodiscard]] std::chrono::nanoseconds slice() const noexcept { return std::min(left(), longest_gap / 2); }

  /// Adding nanoseconds::max() gives never.
  [[nodiscard]] friend Deadline operator+(Deadline deadline, std::chrono::nanoseconds time) noexcept {
    return time.count() > INT64_MAX - deadline.time_ ? never() : Deadline(deadline.time_ + time.count());
  }
  [[nodiscard]] friend std::chrono::nanoseconds operator-(Deadline a, Deadline b) noexcept {
    return std::chrono::nanoseconds(a.time_ - b.time_);
  }
  constexpr auto operator<=>(const Deadline&) const = default;

 private:
  explicit constexpr Deadline(std::int64_t time) : time_(time) {}

  std::int64_t time_ = INT64_MAX;
};

}  // namespace shardrun::sdk
