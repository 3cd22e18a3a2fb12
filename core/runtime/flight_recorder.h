#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string_view>
#include <vector>

#include "core/files/descriptor.h"
#include "core/runtime/flight_record.h"

namespace shardrun::runtime {

/// Records, in a mapped file, what a rank is doing, and the last thousand operations between ranks that it started. The
/// file survives any end of the process. Only one thread may use it. Recording a phase or a run of an operation
/// allocates nothing and makes no calls except for reading the clock.
class FlightRecorder {
 public:
  /// Creates the file with its full size. Its folder must exist. Throws Error{io}.
  FlightRecorder(std::filesystem::path path, int rank);
  FlightRecorder(const FlightRecorder&) = delete;
  FlightRecorder& operator=(const FlightRecorder&) = delete;
  ~FlightRecorder();

  /// Sets the rank's activity, as a text for people whose first 119 bytes are kept, and the step (from 1) of operations
  /// that start from now on.
  void set_phase(std::string_view phase, std::int64_t step) noexcept;

  /// Removes the file. Later recording has no effect.
  void remove() noexcept;

  // These return numbers from 0. Both throw Error{io}.
  [[nodiscard]] std::uint32_t add_group(std::string_view name, const std::vector<std::uint32_t>& members);
  [[nodiscard]] std::uint32_t add_op(std::uint32_t group, std::uint64_t bytes, std::string_view what);

  // These concern the op's latest run.
  void started(std::uint32_t op) noexcept;
  void waited_for(std::uint32_t op) noexcept;
  void ended(std::uint32_t op, bool failed) noexcept;

 private:
  struct Op {
    std::uint32_t group = 0;
    std::uint64_t run = 0;  ///< number of the latest run
  };

  void append(std::string_view line);
  /// The record of the op's latest run. Null if it has not run, or if a later run of an op took the place in the ring.
  [[nodiscard]] FlightRun* latest_of(std::uint32_t op) noexcept;

  std::filesystem::path path_;
  files::FileDescriptor file_;
  FlightFile* record_ = nullptr;
  std::int64_t step_ = 0;
  std::uint32_t groups_ = 0;
  std::vector<Op> ops_;
};

}  // namespace shardrun::runtime
