#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <optional>

#include "core/files/descriptor.h"
#include "core/partition/program.h"
#include "core/runtime/executor.h"
#include "core/screen/ticker.h"

namespace shardrun::train {

/// One step on this rank. Times are in seconds.
struct StepMeasure {
  double duration = 0;
  double exposed = 0;  ///< communication for which the rank waited
  double hidden = 0;   ///< communication while the rank computed
  double input = 0;    ///< reading samples
  double late = 0;     ///< by which transfers began late
  partition::SentBytes sent;
};

/// Measures a step from the construction to end(). `executor` outlives this object.
class StepMeter {
 public:
  explicit StepMeter(const runtime::Executor& executor);
  /// Call it when all work of the step has been enqueued. Bytes sent from now on belong to another step.
  void all_is_given();
  /// Call it when the step before has ended only now: this step's time begins now.
  void begin_again();
  [[nodiscard]] double seconds() const;  ///< since the step began
  [[nodiscard]] StepMeasure end() const;

 private:
  const runtime::Executor& executor_;
  partition::SentBytes before_;               ///< sent before the step
  std::optional<partition::SentBytes> sent_;  ///< what the step has sent; nothing before all_is_given()
  double exposed_ = 0;
  double hidden_ = 0;
  double input_ = 0;
  double late_ = 0;
  std::chrono::steady_clock::time_point begin_;
};

/// Times for which this process was stopped (SIGSTOP, a frozen control group): a thread finds out that it slept for
/// longer than it wanted to, without waiting for a core. None are found on a system that does not tell for how long a
/// thread waited for a core (schedstat of Linux). All functions may be called on any thread.
class Stops {
 public:
  struct Sum {
    std::int64_t count = 0;
    double seconds = 0;
  };

  [[nodiscard]] Sum sum() const noexcept {
    return {count_.load(), std::chrono::duration<double>(std::chrono::nanoseconds(nanoseconds_.load())).count()};
  }

 private:
  void look() noexcept;
  /// For how long the calling thread could run and had no core, so far.
  [[nodiscard]] std::optional<std::chrono::nanoseconds> waited_for_core() noexcept;

  std::atomic<std::int64_t> count_ = 0;
  std::atomic<std::int64_t> nanoseconds_ = 0;
  // Used only by the ticker's thread.
  std::chrono::steady_clock::time_point looked_ = std::chrono::steady_clock::now();
  std::optional<std::chrono::nanoseconds> waited_;  ///< for a core, until then
  files::FileDescriptor statistics_;                ///< of the thread
  static constexpr std::chrono::milliseconds interval{10};
  screen::Ticker ticker_{interval, [this] { look(); }};
};

}  // namespace shardrun::train
