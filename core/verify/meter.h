#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "core/partition/program.h"
#include "core/screen/progress.h"

namespace shardrun::verify {

/// Shows how much of a known amount of work is done, and the remaining time. On a terminal: a LiveLine, rewritten
/// at most ten times a second. Elsewhere: whole lines, after 10 s, or after 2 s and a tenth of the work. Used
/// by one thread.
class Meter {
 public:
  /// `title`: the purpose of the work, "comparing with the reference".
  Meter(screen::ProgressSink sink, std::string title);
  Meter(const Meter&) = delete;
  Meter& operator=(const Meter&) = delete;
  ~Meter() { line_.clear(); }

  /// Sets the total amount of work, in the caller's unit.
  void expect(std::int64_t work);
  /// Sets the current activity, "step 1/3". Shown at once.
  void at(std::string_view what);
  void add(std::int64_t work);
  /// Prints a line above the live one.
  void print(std::string_view line);

 private:
  void show(screen::SteadyTime now);
  /// Tenths of the total that are done, rounded down.
  [[nodiscard]] std::int64_t tenth() const {
    return total_ > 0 ? static_cast<std::int64_t>(10.0 * static_cast<double>(done_) / static_cast<double>(total_)) : 0;
  }
  [[nodiscard]] bool is_due(screen::SteadyTime now) const;
  [[nodiscard]] std::string describe(screen::SteadyTime now) const;

  screen::ProgressSink sink_;
  std::string title_;
  std::string what_;
  std::int64_t total_ = 0;
  std::int64_t done_ = 0;
  screen::SteadyTime begin_;
  screen::SteadyTime shown_at_;
  std::int64_t shown_tenth_ = 0;
  screen::LiveLine line_{sink_};
};

/// A program's work in the meter's unit: floating-point operations, plus one per instruction, so that instructions that
/// only move data count too.
[[nodiscard]] std::int64_t work_of(const partition::Program& program);

/// Follows the instructions of programs that run one after the other. For Executor::end_where, which reports that an
/// instruction comes but not which.
class InstructionWork {
 public:
  /// `meter` outlives this; null: nothing is counted.
  InstructionWork(const partition::Programs& programs, Meter* meter);

  /// Sets the programs, by number, that run next, in order.
  void follow(const std::vector<std::size_t>& programs);
  /// The next instruction begins.
  void step();

 private:
  std::vector<std::vector<std::int64_t>> work_;  ///< per program, of its instructions
  Meter* meter_;
  std::vector<std::size_t> programs_;
  std::size_t program_ = 0;
  std::size_t instruction_ = 0;
};

}  // namespace shardrun::verify
