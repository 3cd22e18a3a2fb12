#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

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

}  // namespace shardrun::runtime
