#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/options/options.h"

namespace shardrun::job {

/// Every section and key of the job file, from the schema that checks it. For a terminal.
[[nodiscard]] std::string job_reference();

/// What that says of one section; empty if there is none of this name.
[[nodiscard]] std::string section_reference(std::string_view name);

/// The same as the page docs/job-file.md.
[[nodiscard]] std::string job_reference_markdown();

/// Options that a model or strategy declares, in the same form. For a terminal.
[[nodiscard]] std::string options_reference(const std::vector<OptionSpec>& specs);

}  // namespace shardrun::job
