#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "core/runtime/flight_file.h"

namespace shardrun::runtime {

struct FlightGroup {
  std::string name;
  std::vector<int> members;  ///< ranks
  std::uint64_t starts = 0;  ///< operations of the group that were started so far
};

struct FlightOp {
  std::size_t group = 0;
  std::uint64_t bytes = 0;  ///< the larger of this rank's input and output
  std::string what;
};

struct FlightEntry {
  std::uint64_t number = 0;
  std::uint64_t number_in_group = 0;
  std::size_t op = 0;
  FlightState state = FlightState::started;
  std::int64_t step = 0;
  std::int64_t started = 0;  ///< nanoseconds of CLOCK_MONOTONIC, like all times; 0: not started
  std::int64_t waited_for = 0;
  std::int64_t ended = 0;
};

/// What a rank is doing, or what it did last before its process ended.
struct FlightRecord {
  int rank = 0;
  std::int64_t pid = 0;
  std::int64_t clock_offset = 0;  ///< nanoseconds to add to times to get those of the system clock
  std::int64_t step = 0;
  std::string phase;
  std::vector<FlightGroup> groups;
  std::vector<FlightOp> ops;
  std::vector<FlightEntry> entries;  ///< at most flight_runs, the oldest first
};

/// Reads the file of a FlightRecorder. Throws Error{io, data}.
[[nodiscard]] FlightRecord read_flight_record(const std::filesystem::path& path);

/// One line of JSON for the rank, then one for each operation that it started, the oldest first.
[[nodiscard]] std::string to_jsonl(const FlightRecord& record);

/// What the rank was doing, as text: "step 485 (training), after all_gather of W (operation 612 over data)".
[[nodiscard]] std::string place_of(const FlightRecord& record);

/// One line for each operation that ranks have not finished, in the order of the ranks: "ranks 0 and 1 wait for rank 2
/// in all_gather of W (operation 613 over data)". They wait for the members that have not started the operation; if all
/// have, for the members that are still in an earlier operation or in one of another group. Rank `but` is left out,
/// because it is reported elsewhere.
[[nodiscard]] std::vector<std::string> waits_among(const std::vector<FlightRecord>& records, int but = -1);

/// Ranks as text: "rank 2", "ranks 0, 1 and 3".
[[nodiscard]] std::string names_of(const std::vector<int>& ranks);

}  // namespace shardrun::runtime
