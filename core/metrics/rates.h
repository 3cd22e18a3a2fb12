#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace shardrun::metrics {

/// The quartiles of a number over several steps.
struct Quartiles {
  double low = 0;
  double middle = 0;
  double high = 0;
};

/// A rank's computing and sending in one or several steps. Times are in seconds.
struct RankRates {
  /// Long messages from another rank, and the time in which they came.
  struct Link {
    std::int64_t from = -1;  ///< the other rank; -1: none, or its transport does not know
    double bytes = 0;
    double seconds = 0;

    [[nodiscard]] double bandwidth() const noexcept { return seconds > 0 ? bytes / seconds : 0; }
  };

  std::int64_t step = 0;   ///< the last of the steps, counted from 1
  std::int64_t steps = 1;  ///< how many
  std::int64_t stage = 0;  ///< the rank's stage of a pipeline
  double seconds = 0;
  double communicating = 0;    ///< each of several concurrent transfers counts
  double waiting = 0;          ///< the part of `communicating` in which the rank did nothing else
  double input = 0;            ///< reading samples
  double late = 0;             ///< from the start of transfers until the transport began to work on them
  double starved = 0;          ///< in which the rank could run and had no core; part of the other times
  double starved_waiting = 0;  ///< the part of `starved` that is in `waiting`
  double bytes = 0;            ///< sent to other ranks
  double flops = 0;            ///< includes what is recomputed; 0: unknown
  double fastest = 0;          ///< operations per second of the rank's fastest op; 0: not measured
  double stopped = 0;          ///< in which the process did not run
  std::int64_t stops = 0;      ///< how often it was stopped
  Link slowest = {};           ///< the slowest of the links to this rank, in the latest report
  Link others = {};            ///< sum of the other links, and of all links in earlier reports; `from` has no meaning

  // Quartiles and medians over single steps, because they leave out steps that something else has disturbed.
  Quartiles busy;           ///< `seconds` without `waiting`
  Quartiles late_in_step;   ///< `late`
  Quartiles input_in_step;  ///< `input`
  double usual_seconds = 0;
  double usual_waiting = 0;
  /// `starved` of a step: the median of stretches of consecutive steps, each of a fifth of a second or more. A control
  /// group's limit takes effect every tenth of a second, not in each step.
  double usual_starved = 0;

  [[nodiscard]] double bandwidth() const noexcept { return communicating > 0 ? bytes / communicating : 0; }
  [[nodiscard]] double flops_per_s() const noexcept { return seconds > 0 ? flops / seconds : 0; }
  [[nodiscard]] double computing() const noexcept { return seconds - waiting - input; }
  /// Adds the sums of the following steps. The numbers over single steps stay.
  void add(const RankRates& later) noexcept;
};

/// Collects a rank's steps for a report. Memory is reserved beforehand: adding a step allocates nothing.
class StepRates {
 public:
  StepRates();
  /// `step`: sums of one step.
  void add(const RankRates& step) noexcept;
  [[nodiscard]] std::int64_t steps() const noexcept { return sums_.steps; }
  /// The sums and the quartiles of the steps since the last call. REQUIRES: there was a step.
  [[nodiscard]] RankRates take() noexcept;

 private:
  /// Quartiles are taken over the latest steps, at most so many.
  static constexpr std::size_t most = 1024;

  /// Returns the quartiles of a column's first `count` values, or of all if it has fewer. Sorts these values. REQUIRES:
  /// `count` > 0.
  [[nodiscard]] static Quartiles quartiles_of(std::vector<double>& column, std::int64_t count) noexcept;

  RankRates sums_;
  RankRates stretch_;  ///< sums of the steps since the last whole stretch
  std::int64_t stretches_ = 0;
  /// Columns of busy, late, seconds, waiting and input, by step; and of starved per step, by stretch.
  std::array<std::vector<double>, 6> columns_;
};

/// Converts to a message between processes, and back. Numbers missing in the text become 0.
[[nodiscard]] std::string to_text(const RankRates& rates);
[[nodiscard]] RankRates rates_of(std::string_view text) noexcept;

/// A line about the same steps of all ranks: for a few ranks each one, in order; otherwise the minimum and the maximum.
/// `rank_flops`: operations per second that a rank is capable of; 0: unknown, then `fastest` takes its place.
[[nodiscard]] std::string rates_line(const std::vector<RankRates>& ranks, double rank_flops);

}  // namespace shardrun::metrics
