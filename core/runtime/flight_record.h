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
  std::uint64_t starts = 0;  ///< of operations of it, so far
};

struct FlightOp {
  std::size_t group = 0;
  std::uint64_t bytes = 0;  ///< that this rank brings to it or takes from it, whichever is more
  std::string what;
};

struct FlightEntry {
  std::uint64_t number = 0;
  std::uint64_t number_in_group = 0;
  std::size_t op = 0;
  FlightState state = FlightState::started;
  std::int64_t step = 0;
  std::int64_t started = 0;  ///< nanoseconds of CLOCK_MONOTONIC; 0: not yet, as all times
  std::int64_t waited_for = 0;
  std::int64_t ended = 0;
};

/// What one rank was at when its process ended, or is at.
struct FlightRecord {
  int rank = 0;
  std::int64_t pid = 0;
  std::int64_t clock_offset = 0;  ///< to be added to times for those of the system clock
  std::int64_t step = 0;
  std::string phase;
  std::vector<FlightGroup> groups;
  std::vector<FlightOp> ops;
  std::vector<FlightEntry> entries;  ///< at most flight_runs, the oldest first
};

/// What a FlightRecorder has written. Throws Error{io, data}.
[[nodiscard]] FlightRecord read_flight_record(const std::filesystem::path& path);

/// A line of JSON for the rank, and one for each operation that it started, the oldest first.
[[nodiscard]] std::string to_jsonl(const FlightRecord& record);

/// "step 485 (training), after all_gather of W (operation 612 over data)": what the rank was at.
[[nodiscard]] std::string place_of(const FlightRecord& record);

/// "ranks 0 and 1 wait for rank 2 in all_gather of W (operation 613 over data)", for each operation that ranks have not
/// come to the end of, in the order of the ranks; of `but`, who is told of elsewhere, nothing. Waited for are those
/// members that have not started it, or else those that have started it but are still in one before or elsewhere.
[[nodiscard]] std::vector<std::string> waits_among(const std::vector<FlightRecord>& records, int but = -1);

/// "rank 2", "ranks 0, 1 and 3".
[[nodiscard]] std::string names_of(const std::vector<int>& ranks);

}  // namespace shardrun::runtime
