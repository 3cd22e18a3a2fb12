#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "core/bench/cases.h"
#include "core/bench/settings.h"
#include "core/launch/world.h"

namespace shardrun::bench {

/// A case and its results.
struct Row {
  Case measured;
  double time_us = 0;       ///< the slowest rank's time, median over the iterations
  double p99_us = 0;        ///< 99th percentile of the slowest rank's time
  double algbw = 0;         ///< in 10^9 bytes per second
  double busbw = 0;         ///< in 10^9 bytes per second: algbw · bus_factor(); for ceilings, algbw
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

/// The results as JSON: {"transport", "host", "cores", "ranks", "ceilings", "rows"}. `rows` has only ops.
[[nodiscard]] std::string to_json(const Setting& setting, const std::vector<Row>& rows);

struct Callbacks {
  std::function<void(const Row& row)> on_row;  ///< called for each row; the ceilings (see What) come first
  /// Called before each case with its number, the number of cases, and its text.
  std::function<void(std::size_t number, std::size_t cases, const std::string& text)> on_begin;
  std::function<void(const std::string& text)> on_line;  ///< gets output of ranks, and remarks
};

struct Outcome {
  int exit_code = 0;  ///< also 1 if a result was wrong
  std::uint64_t wrong = 0;
  std::string error;  ///< the root cause of a failure
  std::vector<Row> rows;
};

/// The value for Settings::device: "" if the transport moves host memory, otherwise the device whose memory it moves.
/// Throws Error with exit code 2 if there is no such transport, or if it moves no memory that bench can use.
[[nodiscard]] std::string device_of(const Settings& settings);

/// Checks everything that can be checked before bench starts a process, or before ranks that another launcher has
/// started connect to each other. `world`: the world of these ranks; null: bench starts the ranks. Throws Error with
/// exit code 2.
[[nodiscard]] Setting check(const Settings& settings, const launch::World* world);

/// Starts the ranks, each with the command line `words`, and gathers their measurements. REQUIRES: check() passed, and
/// nothing else in this process handles signals or starts processes.
[[nodiscard]] Outcome run(const Settings& settings, const std::vector<std::string>& words, const Callbacks& callbacks);

// For ranks that another launcher has started: each process is one rank. REQUIRES: check() passed. `stop_signal`:
// returns the signal that asked this process to stop, or 0.

/// Runs rank 0, which also gathers the measurements. Calls `tell` with the outcome and returns its result; the other
/// ranks end only after that. Throws Error{usage} if the ranks have no way to find each other.
[[nodiscard]] int run_hosted_first(const Settings& settings, const launch::World& world,
                                   const std::function<int()>& stop_signal, const Callbacks& callbacks,
                                   const std::function<int(const Outcome& outcome)>& tell);
/// Runs any other rank. Returns its exit code. Throws Error{io} if rank 0 could not begin.
[[nodiscard]] int run_hosted_other(const Settings& settings, const launch::World& world,
                                   const std::function<int()>& stop_signal);

}  // namespace shardrun::bench
