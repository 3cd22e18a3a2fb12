#pragma once

#include <filesystem>
#include <string>

namespace shardrun::train {

// The ranks' flight records, in a folder of the run's output. They are binary while the job runs, and become text if it
// fails.

/// The path of a rank's own record. Makes the folder if it is missing. Throws Error{io}.
[[nodiscard]] std::filesystem::path new_flight_path(const std::filesystem::path& output, int rank);

/// Removes the folder, for a job that came to its end.
void drop_flights(const std::filesystem::path& output) noexcept;

/// For a job that failed, once all ranks have ended: writes every record as flight/rank-N.jsonl. Returns lines for the
/// report, each with a leading line break: what the failed rank was doing, who waits for whom, where the records are.
[[nodiscard]] std::string tell_flights(const std::filesystem::path& output, int ranks, int cause);

}  // namespace shardrun::train
