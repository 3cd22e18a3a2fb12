#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/metrics/progress.h"
#include "core/partition/program.h"

namespace shardrun::verify {

/// Shows how much of a known amount of work is done, and how long the rest will take. On a terminal one line that is
/// rewritten in place, at most ten times a second; elsewhere whole lines: when 10 s have passed, or a tenth of the work
/// and 2 s. Used by one thread.
class Meter {
 public:
  /// `title`: what the work is for, "comparing with the reference".
  Meter(metrics::ProgressSink sink, std::string title);
  Meter(const Meter&) = delete;
  Meter& operator=(const Meter&) = delete;
  ~Meter();  ///< takes the live line away

  /// How much there is to do in all, from now on. The unit is the caller's.
  void expect(std::int64_t work);
  /// What is being done: "step 1/3". Shown at once.
  void at(std::string_view what);
  void add(std::int64_t work);
  /// Prints a line of its own, above the live one.
  void print(std::string_view line);

 private:
  void show(metrics::SteadyTime now);
  void clear_line();
  /// Of all that is to be done, rounded down.
  [[nodiscard]] std::int64_t tenth() const {
    return total_ > 0 ? static_cast<std::int64_t>(10.0 * static_cast<double>(done_) / static_cast<double>(total_)) : 0;
  }
  [[nodiscard]] bool is_due(metrics::SteadyTime now) const;
  [[nodiscard]] std::string describe(metrics::SteadyTime now) const;

  metrics::ProgressSink sink_;
  std::string title_;
  std::string what_;
  std::int64_t total_ = 0;
  std::int64_t done_ = 0;
  metrics::SteadyTime begin_;
  metrics::SteadyTime shown_at_;
  std::int64_t shown_tenth_ = 0;
  std::size_t live_width_ = 0;  ///< columns that the line on the screen takes; 0 where there is none
};

/// A program's work, which a meter counts in: floating-point operations, and one for each instruction, so that those
/// that only move something count too.
[[nodiscard]] std::int64_t work_of(const partition::Program& program);

/// Follows the instructions of programs that are run one after the other: for Executor::end_where, which says that an
/// instruction comes but not which.
class InstructionWork {
 public:
  /// `meter` outlives this; null: nothing is counted.
  InstructionWork(const partition::Programs& programs, Meter* meter);

  /// The programs, by number, that are run from now on, in their order.
  void follow(const std::vector<std::size_t>& programs);
  /// The next instruction begins.
  void step();

 private:
  std::vector<std::vector<std::int64_t>> work_;  ///< of each program's instructions
  Meter* meter_;
  std::vector<std::size_t> programs_;
  std::size_t program_ = 0;
  std::size_t instruction_ = 0;
};

}  // namespace shardrun::verify
