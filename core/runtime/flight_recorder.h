#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string_view>
#include <vector>

#include "core/files/descriptor.h"
#include "core/runtime/flight_file.h"

namespace shardrun::runtime {

/// Records what a rank is doing, and the last thousand operations between ranks that it started, in a mapped file. The
/// file survives any end of the process. Used by one thread. Recording allocates nothing and calls nothing but the
/// clock.
class FlightRecorder {
 public:
  /// Creates the file with its full size; its folder exists. Throws Error{io}.
  FlightRecorder(std::filesystem::path path, int rank);
  FlightRecorder(const FlightRecorder&) = delete;
  FlightRecorder& operator=(const FlightRecorder&) = delete;
  ~FlightRecorder();

  /// Sets what the rank is doing, for a person, in less than 128 bytes, and the step (from 1) of operations that start
  /// from now on.
  void set_phase(std::string_view phase, std::int64_t step) noexcept;

  /// Removes the file. Later recording has no effect.
  void remove() noexcept;

  // Groups and ops are numbered from 0. Both throw Error{io}.
  [[nodiscard]] std::uint32_t add_group(std::string_view name, const std::vector<std::uint32_t>& members);
  [[nodiscard]] std::uint32_t add_op(std::uint32_t group, std::uint64_t bytes, std::string_view what);

  // These are about the op's latest run.
  void started(std::uint32_t op) noexcept;
  void waited_for(std::uint32_t op) noexcept;
  void ended(std::uint32_t op, bool failed) noexcept;

 private:
  struct Op {
    std::uint32_t group = 0;
    std::uint64_t run = 0;  ///< the number of the latest run
  };

  void append(std::string_view line);
  /// Null if that run's place in the ring has been reused.
  [[nodiscard]] FlightRun* latest_of(std::uint32_t op) noexcept;

  std::filesystem::path path_;
  files::FileDescriptor file_;
  FlightFile* record_ = nullptr;
  std::int64_t step_ = 0;
  std::uint32_t groups_ = 0;
  std::vector<Op> ops_;
};

}  // namespace shardrun::runtime
