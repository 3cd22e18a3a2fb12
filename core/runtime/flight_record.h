#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace shardrun::runtime {

// The file of a flight record, which FlightRecorder writes and read_flight_record reads. It has a header, counts of
// groups, a ring of runs, and then lines of text: "G MEMBERS MEMBER… NAME" for a group, "O GROUP BYTES WHAT" for an op.

/// Number of runs that are kept.
inline constexpr std::size_t flight_runs = 1000;
/// Number of groups whose starts are counted; a rank usually has a few.
inline constexpr std::size_t flight_groups = 512;

enum class FlightState : std::uint32_t { started = 1, waited_for = 2, done = 3, failed = 4 };

/// The phase and the step of a rank.
struct FlightPhase {
  std::array<char, 120> name;  ///< padded with zeros, at least one
  std::int64_t step;
};

struct FlightHeader {
  std::array<char, 8> magic;
  std::uint32_t version;
  std::int32_t rank;
  std::int64_t pid;
  std::int64_t clock_offset;  ///< the system clock minus the monotonic clock, in nanoseconds
  /// Two slots, written in turns, so that one is complete while the other is written.
  std::array<FlightPhase, 2> phases;
  std::atomic<std::uint64_t> phase_changes;  ///< phases[phase_changes % 2] is current
  std::atomic<std::uint64_t> runs;           ///< so far
  std::atomic<std::uint64_t> text_bytes;
};

struct FlightRun {
  /// Number among all runs of this rank, from 1. It is 0 while the other fields are written, and set last, so that a
  /// run which a killed process has half written is recognised.
  std::atomic<std::uint64_t> number;
  std::uint64_t number_in_group;  ///< from 1, the same on all members
  std::uint32_t op;
  std::atomic<FlightState> state;
  std::int64_t step;
  std::int64_t started;  ///< nanoseconds of CLOCK_MONOTONIC, like all times
  std::int64_t waited_for;
  std::int64_t ended;
};

struct FlightFile {
  FlightHeader header;
  std::array<std::uint64_t, flight_groups> starts;
  std::array<FlightRun, flight_runs> runs;
};

inline constexpr std::array<char, 8> flight_magic = {'s', 'h', 'r', 'd', 'f', 'l', 'y', '1'};
inline constexpr std::uint32_t flight_version = 2;

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
  std::int64_t started = 0;  ///< nanoseconds of CLOCK_MONOTONIC, like all times; 0: that has not happened
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

/// The rank's activity as text: "step 485 (training), after all_gather of W (operation 612 over data)".
[[nodiscard]] std::string place_of(const FlightRecord& record);

/// One line for each operation that ranks have not finished, in the order of the ranks: "ranks 0 and 1 wait for rank 2
/// in all_gather of W (operation 613 over data)". They wait for the members that have not started the operation; if all
/// have, for the members that are still in an earlier operation or in one of another group. Rank `but` is left out,
/// because it is reported elsewhere.
[[nodiscard]] std::vector<std::string> waits_among(const std::vector<FlightRecord>& records, int but = -1);

/// Ranks as text: "rank 2", "ranks 0, 1 and 3".
[[nodiscard]] std::string names_of(const std::vector<int>& ranks);

}  // namespace shardrun::runtime
