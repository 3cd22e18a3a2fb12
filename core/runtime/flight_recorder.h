#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string_view>
#include <vector>

#include "core/files/descriptor.h"
#include "core/runtime/flight_file.h"

namespace shardrun::runtime {

/// Keeps what a rank is at and the last thousand operations between ranks that it started, in a file that is mapped: it
/// is there however the process ends, killed or crashed. Used by one thread. Recording allocates nothing and calls
/// nothing but the clock.
class FlightRecorder {
 public:
  /// Creates the file with all the room that it needs; its folder is there. Throws Error{io}.
  FlightRecorder(std::filesystem::path path, int rank);
  FlightRecorder(const FlightRecorder&) = delete;
  FlightRecorder& operator=(const FlightRecorder&) = delete;
  ~FlightRecorder();

  /// What the rank is at, for a person, in less than 128 bytes; and the step of what it starts from now on, from 1 on.
  void set_phase(std::string_view phase, std::int64_t step) noexcept;

  /// Removes the file; recording goes on, to nowhere.
  void remove() noexcept;

  // Both are numbered from 0 on. They throw Error{io}.
  [[nodiscard]] std::uint32_t add_group(std::string_view name, const std::vector<std::uint32_t>& members);
  [[nodiscard]] std::uint32_t add_op(std::uint32_t group, std::uint64_t bytes, std::string_view what);

  // Of the op's latest run.
  void started(std::uint32_t op) noexcept;
  void waited_for(std::uint32_t op) noexcept;
  void ended(std::uint32_t op, bool failed) noexcept;

 private:
  struct Op {
    std::uint32_t group = 0;
    std::uint64_t run = 0;  ///< the number of its latest
  };

  void append(std::string_view line);
  /// Null where it was long ago and its place in the ring is another's.
  [[nodiscard]] FlightRun* latest_of(std::uint32_t op) noexcept;

  std::filesystem::path path_;
  files::FileDescriptor file_;
  FlightFile* record_ = nullptr;
  std::int64_t step_ = 0;
  std::uint32_t groups_ = 0;
  std::vector<Op> ops_;
};

}  // namespace shardrun::runtime
