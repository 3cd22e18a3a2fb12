#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/bench/report.h"
#include "core/bench/settings.h"

namespace shardrun::bench {

struct Callbacks {
  std::function<void(const Row& row)> on_row;  ///< ceilings first
  /// Before each case: its number, the number of cases, and its text.
  std::function<void(std::size_t number, std::size_t cases, const std::string& text)> on_begin;
  std::function<void(const std::string& text)> on_line;  ///< output of ranks, and remarks
};

struct Outcome {
  int exit_code = 0;  ///< also 1 if a result was wrong
  std::uint64_t wrong = 0;
  std::string error;  ///< the root cause of a failure
  std::vector<Row> rows;
};

/// Checks everything that can be checked before a process starts. Throws Error with exit code 2.
[[nodiscard]] Setting check(const Settings& settings);

/// Starts the ranks, each with the command line `words`, and gathers their measurements. REQUIRES: check() passed, and
/// nothing else in this process handles signals or starts processes.
[[nodiscard]] Outcome run(const Settings& settings, const std::vector<std::string>& words, const Callbacks& callbacks);

}  // namespace shardrun::bench
