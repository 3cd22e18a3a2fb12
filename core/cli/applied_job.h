#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "core/cli/options.h"
#include "core/job/raw.h"

namespace shardrun::cli {

/// A job that applies a model: made from a run, a checkpoint, a weights file, a folder of Hugging Face's libraries or a
/// GGUF file, for the options --ranks, --strategy, --transport and --set of `command`. `overrides`: settings of the
/// command line, such as "infer.to=-". Throws Error{usage, data}.
[[nodiscard]] job::RawJob job_of_weights(const Parsed& parsed, const std::string& command,
                                         const std::filesystem::path& path, const std::vector<std::string>& overrides);

}  // namespace shardrun::cli
