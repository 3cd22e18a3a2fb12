#pragma once

#include <filesystem>
#include <string>

namespace shardrun::metrics {

// The ranks' flight records, in a folder of the run's output: kept while it runs, told and written as text where it
// fails.

/// Where a rank keeps its own, in the folder that this makes where it is missing. Throws Error{io}.
[[nodiscard]] std::filesystem::path new_flight_path(const std::filesystem::path& output, int rank);

/// Of a job that came to its end: removes the folder.
void drop_flights(const std::filesystem::path& output) noexcept;

/// Of a job that failed, once all ranks have ended: every record becomes flight/rank-N.jsonl. What there is to say
/// beside the root cause, in lines that each begin with a line break: what that rank was at, who waits for whom, where
/// the records are.
[[nodiscard]] std::string tell_flights(const std::filesystem::path& output, int ranks, int cause);

}  // namespace shardrun::metrics
