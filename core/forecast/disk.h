#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/compile/compile.h"
#include "core/files/disk_room.h"
#include "core/job/job.h"

namespace shardrun::forecast {

/// Bytes that a job writes to its files. Those of the result and the outputs are exact; the rest are estimates.
struct DiskUse {
  std::string result;               ///< name of the result's file
  std::uint64_t result_bytes = 0;   ///< one copy of the result, which all ranks write together
  std::uint64_t output_bytes = 0;   ///< one copy of all outputs of the function `iterate`
  std::int64_t under_way = 0;       ///< number of times that [iterate] save_every saves result and outputs
  std::uint64_t picture_bytes = 0;  ///< upper bound for the pictures of [iterate] pictures
  std::uint64_t metrics_bytes = 0;  ///< metrics.jsonl, and what [metrics] adds to it
  bool has_other_metrics = false;
  std::uint64_t record_bytes = 0;  ///< flight records; 0 with one rank
  std::uint64_t trace_bytes = 0;   ///< the trace of each rank, and the joined trace
  std::uint64_t sample_bytes = 0;
  std::uint64_t checkpoint_bytes = 0;  ///< the checkpoints that exist at the same time
  std::string checkpoint_folder;       ///< [checkpoint] folder; empty: they are in the output folder

  /// Bytes of the result and the outputs, including every copy that [iterate] save_every writes. A result of an older
  /// run is not counted: it is kept until the new one is complete, but its space is already taken.
  [[nodiscard]] std::uint64_t result_bytes_in_all() const noexcept;
  /// Bytes of everything in the output folder.
  [[nodiscard]] std::uint64_t total() const noexcept;
};

[[nodiscard]] DiskUse disk_use(const job::Job& job, const compile::Compiled& compiled);

/// For example "weights.safetensors 4.73 MiB, metrics.jsonl 7.50 KiB, in all 4.74 MiB".
[[nodiscard]] std::string to_string(const DiskUse& use);

/// The space that the file systems and this process's file size limit leave to a job.
struct DiskLimits {
  std::optional<files::DiskRoom> room;             ///< free space for the output folder
  std::optional<files::DiskRoom> checkpoint_room;  ///< set if [checkpoint] folder is on another file system
  std::optional<std::uint64_t> file_size;
  std::uint64_t older_checkpoints = 0;  ///< bytes of existing checkpoints that new ones will replace
};

/// The limits for the job's folder. Files of an older run that this run will remove count as free room. `replaces`: it
/// removes all of them at once.
[[nodiscard]] DiskLimits disk_limits(const job::Job& job, bool replaces = false);

/// Throws Error{job} if the job's results do not fit, or if the result or a rank's arena (a file in memory) exceeds the
/// limit on the size of a file. Returns warnings if the results fit but the other files may not.
std::vector<std::string> require_disk(const job::Job& job, const DiskUse& use, std::uint64_t arena_bytes,
                                      const DiskLimits& limits);
/// Throws Error{job} if the checkpoint folder cannot be made, if a file is in its place, or if it is not writable and
/// [checkpoint] on_failure is stop. With another on_failure, an unwritable folder causes a warning, which is returned.
std::vector<std::string> require_checkpoint_folder(const job::Job& job);
/// Makes all these checks, by the limits of this process. Call it before writing to the output folder.
std::vector<std::string> require_disk(const job::Job& job, const compile::Compiled& compiled, bool replaces);

}  // namespace shardrun::forecast
