#pragma once

#include <filesystem>
#include <string>

namespace shardrun::job {

/// The text of a job file: a regular file of at most `max_file_bytes` (one byte more if it grows meanwhile). Throws
/// Error{job}, whose message begins with the path.
[[nodiscard]] std::string read_source(const std::filesystem::path& path);

}  // namespace shardrun::job
