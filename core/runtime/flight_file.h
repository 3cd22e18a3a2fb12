#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace shardrun::runtime {

// A flight record as FlightRecorder keeps it and read_flight_record reads it: a header, counts of groups, a ring of
// runs, and behind them lines of text: "G NAME MEMBER…" for a group, "O GROUP BYTES WHAT" for an operation.

/// Runs that are kept.
inline constexpr std::size_t flight_runs = 1000;
/// Groups whose starts are counted; a rank has a few.
inline constexpr std::size_t flight_groups = 512;

enum class FlightState : std::uint32_t { started = 1, waited_for = 2, done = 3, failed = 4 };

/// The phase of a run that a rank is in, and the step.
struct FlightPhase {
  std::array<char, 120> name;  ///< padded with zeros, of which there is at least one
  std::int64_t step;
};

struct FlightHeader {
  std::array<char, 8> magic;
  std::uint32_t version;
  std::int32_t rank;
  std::int64_t pid;
  std::int64_t clock_offset;  ///< the system clock minus the monotonic one, nanoseconds
  /// Written by turns: one of them is whole while the other is written.
  std::array<FlightPhase, 2> phases;
  std::atomic<std::uint64_t> phase_changes;  ///< phases[phase_changes % 2] is the one that holds
  std::atomic<std::uint64_t> runs;           ///< so far
  std::atomic<std::uint64_t> text_bytes;
};

struct FlightRun {
  /// Of all of this rank, from 1 on: 0 while the rest is written, and written last, so that what a process that was
  /// killed has half written is told from what is whole.
  std::atomic<std::uint64_t> number;
  std::uint64_t number_in_group;  ///< from 1 on, the same on all members
  std::uint32_t op;
  std::atomic<FlightState> state;
  std::int64_t step;
  std::int64_t started;  ///< nanoseconds of CLOCK_MONOTONIC, as all times
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

}  // namespace shardrun::runtime
