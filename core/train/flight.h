#pragma once

#include <filesystem>
#include <string>

namespace shardrun::train {

// The ranks' flight records, in a folder of the run's output. They are binary while the job runs, and are converted to
// text if it fails.

/// The path of a rank's own record. Makes the folder if it is missing. Throws Error{io}.
[[nodiscard]] std::filesystem::path new_flight_path(const std::filesystem::path& output, int rank);

/// Removes the folder. For a job that has ended without failure.
void drop_flights(const std::filesystem::path& output) noexcept;

/// For a job that has failed, once all ranks have ended: writes every record as flight/rank-N.jsonl. Returns lines for
/// the report, each with a leading line break: what the failed rank was doing, who waits for whom, and where the
/// records are.
[[nodiscard]] std::string tell_flights(const std::filesystem::path& output, int ranks, int cause);

}  // namespace shardrun::train
