#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "core/compile/compile.h"
#include "core/files/disk_room.h"
#include "core/job/job.h"

namespace shardrun::forecast {

/// Bytes that a job writes to its output folder. Those of the result are exact, the others are estimates.
struct DiskUse {
  std::string result;               ///< the file's name
  std::uint64_t result_bytes = 0;   ///< of one; all ranks write one file
  std::int64_t under_way = 0;       ///< states that [iterate] save_every saves besides, of so many bytes each
  std::uint64_t metrics_bytes = 0;  ///< metrics.jsonl
  std::uint64_t record_bytes = 0;   ///< flight records, while several ranks run
  std::uint64_t trace_bytes = 0;    ///< of each rank, and joined
  std::uint64_t sample_bytes = 0;

  /// What has to fit for the job to leave what it computes. An older result stays beside the new one until that is
  /// whole: it takes room that is not free any more, and so is in no sum here.
  [[nodiscard]] std::uint64_t result_bytes_in_all() const noexcept;
  [[nodiscard]] std::uint64_t total() const noexcept;
};

[[nodiscard]] DiskUse disk_use(const job::Job& job, const compile::Compiled& compiled);

/// "weights.safetensors 4.73 MiB, metrics.jsonl 7.50 KiB, in all 4.74 MiB"
[[nodiscard]] std::string to_string(const DiskUse& use);

/// What binds what is written.
struct DiskLimits {
  std::optional<files::DiskRoom> room;
  std::optional<std::uint64_t> file_size;
};

/// Of the folder that the job writes to. What an older run has left there and this one removes counts as free.
[[nodiscard]] DiskLimits disk_limits(const job::Job& job);

/// Throws Error{job} where the job's results do not fit, or a rank's arena of so many bytes, which is a file in memory,
/// is more than a file may have. Returns lines to show where results fit, but not all that is written besides.
std::vector<std::string> require_disk(const job::Job& job, const DiskUse& use, std::uint64_t arena_bytes,
                                      const DiskLimits& limits);
/// By the limits of this process, before the output folder is touched.
std::vector<std::string> require_disk(const job::Job& job, const compile::Compiled& compiled);

}  // namespace shardrun::forecast
