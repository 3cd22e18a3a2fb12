#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/bench/cases.h"

namespace shardrun::bench {

/// A case and its results.
struct Row {
  Case measured;
  double time_us = 0;       ///< the slowest rank's time, median over the iterations
  double p99_us = 0;        ///< 99th percentile of the slowest rank's time
  double algbw = 0;         ///< in 10^9 bytes per second
  double busbw = 0;         ///< in 10^9 bytes per second; only for ops
  std::uint64_t wrong = 0;  ///< wrong elements on all ranks
};

/// The transport and the machine that were measured.
struct Setting {
  std::string host;
  unsigned cores = 0;
  std::string transport;  ///< includes its version
  int ranks = 0;
  bool is_one_machine = true;  ///< all ranks are known to be on this machine
};

/// The results of a case. `nanoseconds`: per rank, then per iteration.
[[nodiscard]] Row row_of(const Case& measured, int ranks, const std::vector<std::vector<double>>& nanoseconds,
                         std::uint64_t wrong);

// The lines of a report, each with its newline.
[[nodiscard]] std::string title(const Setting& setting);
[[nodiscard]] std::string ceiling_line(const Row& row, const Setting& setting);
[[nodiscard]] std::string columns();
[[nodiscard]] std::string line(const Row& row);

/// The results as JSON: {"transport", "ranks", "ceilings", "rows"}. Rows of ceilings are in `ceilings`.
[[nodiscard]] std::string to_json(const Setting& setting, const std::vector<Row>& rows);

}  // namespace shardrun::bench
