#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

#include "core/job/raw.h"

namespace shardrun::job {

/// The sections of a job file's text and of all files that it includes. What a file says itself replaces what the files
/// that it includes say, and later includes replace earlier ones. A relative path, of an included file too, starts in
/// the folder of the file that says it. `file` names the text and starts in `working_folder`.
/// Throws Error{job} for a file that cannot be read, includes itself, or whose syntax is wrong.
[[nodiscard]] std::vector<RawSection> read_including(std::string_view text, const std::filesystem::path& file,
                                                     const std::filesystem::path& working_folder);

}  // namespace shardrun::job
