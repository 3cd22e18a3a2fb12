#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace shardrun::metrics {

/// The work of a rank in one or several steps: its computing and its sending. Times are in seconds.
struct RankRates {
  std::int64_t step = 0;  ///< the last of them, counted from 1
  double seconds = 0;
  double communicating = 0;  ///< concurrent transfers are counted each
  double waiting = 0;        ///< the part of `communicating` during which it did nothing else
  double bytes = 0;          ///< sent to other ranks
  double flops = 0;          ///< what is computed again counts; 0: unknown

  [[nodiscard]] double bandwidth() const noexcept { return communicating > 0 ? bytes / communicating : 0; }
  [[nodiscard]] double flops_per_s() const noexcept { return seconds > 0 ? flops / seconds : 0; }
  /// Adds steps that follow.
  void add(const RankRates& later) noexcept;
};

/// As a message between processes, and back. Numbers that the text lacks are 0.
[[nodiscard]] std::string to_text(const RankRates& rates);
[[nodiscard]] RankRates rates_of(std::string_view text) noexcept;

/// A line about the same steps of all ranks, in order of rank: each of a few, or else the least and the most.
/// `rank_flops`: what a rank can do in a second; 0: unknown.
[[nodiscard]] std::string rates_line(const std::vector<RankRates>& ranks, double rank_flops);

}  // namespace shardrun::metrics
