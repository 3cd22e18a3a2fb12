#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/compile/compile.h"
#include "core/files/disk_room.h"
#include "core/job/job.h"

namespace shardrun::forecast {

/// Bytes that a job writes to its output folder, and its checkpoints. The result's are exact, the others are estimates.
struct DiskUse {
  std::string result;               ///< the file's name
  std::uint64_t result_bytes = 0;   ///< one copy, which all ranks write together
  std::uint64_t output_bytes = 0;   ///< one copy of all outputs of the function `iterate`
  std::int64_t under_way = 0;       ///< number of times that [iterate] save_every saves both
  std::uint64_t picture_bytes = 0;  ///< at most; those of [iterate] pictures
  std::uint64_t metrics_bytes = 0;  ///< metrics.jsonl
  std::uint64_t record_bytes = 0;   ///< flight records, with several ranks
  std::uint64_t trace_bytes = 0;    ///< each rank's, and the joined one
  std::uint64_t sample_bytes = 0;
  std::uint64_t checkpoint_bytes = 0;  ///< of those that are there at once
  std::string checkpoint_folder;       ///< [checkpoint] folder; empty: they are in the output folder

  /// Bytes that must fit for the job to leave its results. An older result is kept until the new one is complete. Its
  /// room is already taken, so it is in no sum here.
  [[nodiscard]] std::uint64_t result_bytes_in_all() const noexcept;
  /// In the output folder.
  [[nodiscard]] std::uint64_t total() const noexcept;
};

[[nodiscard]] DiskUse disk_use(const job::Job& job, const compile::Compiled& compiled);

/// "weights.safetensors 4.73 MiB, metrics.jsonl 7.50 KiB, in all 4.74 MiB"
[[nodiscard]] std::string to_string(const DiskUse& use);

/// The limits that apply.
struct DiskLimits {
  std::optional<files::DiskRoom> room;             ///< for the output folder
  std::optional<files::DiskRoom> checkpoint_room;  ///< for checkpoints in a folder of their own on another file system
  std::optional<std::uint64_t> file_size;
  std::uint64_t older_checkpoints = 0;  ///< bytes of those that are there and that later ones take the place of
};

/// The limits for the job's folder. Files of an older run that this run will remove count as free room.
[[nodiscard]] DiskLimits disk_limits(const job::Job& job);

/// Throws Error{job} if the job's results do not fit, or if a rank's arena, a file in memory, exceeds the limit of a
/// file's size. Returns warnings if the results fit but the other files may not.
std::vector<std::string> require_disk(const job::Job& job, const DiskUse& use, std::uint64_t arena_bytes,
                                      const DiskLimits& limits);
/// Throws Error{job} if the job's checkpoints cannot have their folder, because a file is in its place, it cannot be
/// made, or it cannot be written and [checkpoint] on_failure is stop. Else returns a warning if it cannot be written.
std::vector<std::string> require_checkpoint_folder(const job::Job& job);
/// All of it, by the limits of this process. Called before the output folder is touched.
std::vector<std::string> require_disk(const job::Job& job, const compile::Compiled& compiled);

}  // namespace shardrun::forecast
