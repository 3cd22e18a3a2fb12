#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace shardrun::metrics {

/// A rank's computing and sending in one or several steps. Times are in seconds.
struct RankRates {
  std::int64_t step = 0;  ///< the last of the steps, counted from 1
  double seconds = 0;
  double communicating = 0;  ///< each of several concurrent transfers counts
  double waiting = 0;        ///< the part of `communicating` in which the rank did nothing else
  double bytes = 0;          ///< sent to other ranks
  double flops = 0;          ///< includes what is recomputed; 0: unknown
  double fastest = 0;        ///< operations per second of the rank's fastest op; 0: not measured

  [[nodiscard]] double bandwidth() const noexcept { return communicating > 0 ? bytes / communicating : 0; }
  [[nodiscard]] double flops_per_s() const noexcept { return seconds > 0 ? flops / seconds : 0; }
  /// Adds the following steps.
  void add(const RankRates& later) noexcept;
};

/// Converts to a message between processes, and back. Numbers missing in the text become 0.
[[nodiscard]] std::string to_text(const RankRates& rates);
[[nodiscard]] RankRates rates_of(std::string_view text) noexcept;

/// A line about the same steps of all ranks: for a few ranks each one, in order; otherwise the minimum and the maximum.
/// `rank_flops`: operations per second that a rank is capable of; 0: unknown, then `fastest` takes its place.
[[nodiscard]] std::string rates_line(const std::vector<RankRates>& ranks, double rank_flops);

}  // namespace shardrun::metrics
