#pragma once

#include <filesystem>
#include <string_view>
#include <vector>

#include "core/job/raw.h"

namespace shardrun::job {

struct Included {
  std::vector<RawSection> sections;
  std::vector<std::filesystem::path> files;  ///< absolute; the first is the one that includes the others
};

/// The sections of a job file's text and of all files that it includes. A file's own settings replace included ones,
/// and later includes replace earlier ones. A relative path starts in the folder of the file that has it, also in an
/// included file. `file` names the text and starts in `working_folder`. Throws Error{job} for a file that cannot be
/// read, includes itself, or has wrong syntax.
[[nodiscard]] Included read_including(std::string_view text, const std::filesystem::path& file,
                                      const std::filesystem::path& working_folder);

}  // namespace shardrun::job
