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

/// Shows how much of a known amount of work is done, and the remaining time. On a terminal it rewrites one line at most
/// ten times a second. Elsewhere it prints whole lines: every 10 s, or after 2 s if another tenth of the work is done.
/// Only one thread can use it.
class Meter {
 public:
  /// `title`: what is being done, such as "comparing with the reference".
  Meter(screen::ProgressSink sink, std::string title);
  Meter(const Meter&) = delete;
  Meter& operator=(const Meter&) = delete;
  ~Meter() { line_.clear(); }

  /// Sets the total amount of work. Any unit will do, as long as add() uses the same.
  void expect(std::int64_t work);
  /// Sets and shows the current activity, such as "step 1/3".
  void at(std::string_view what);
  void add(std::int64_t work);
  /// Prints a line above the line that is being rewritten.
  void print(std::string_view line);

 private:
  void show(screen::SteadyTime now);
  /// How many tenths of the total are done, rounded down.
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

/// The work of a program in the meter's unit: its floating-point operations, plus one per instruction, so that
/// instructions which only move data count, too.
[[nodiscard]] std::int64_t work_of(const partition::Program& program);

/// Tells a meter about the instructions of programs that run one after the other. It keeps count itself, because
/// Executor::end_where reports only that an instruction begins, not which one.
class InstructionWork {
 public:
  /// `meter` must outlive this object; null: nothing is counted.
  InstructionWork(const partition::Programs& programs, Meter* meter);

  /// Sets the programs that run next: their numbers, in order.
  void follow(const std::vector<std::size_t>& programs);
  /// Call this when an instruction begins.
  void step();

 private:
  std::vector<std::vector<std::int64_t>> work_;  ///< for each program, the work of each of its instructions
  Meter* meter_;
  std::vector<std::size_t> programs_;
  std::size_t program_ = 0;
  std::size_t instruction_ = 0;
};

}  // namespace shardrun::verify
