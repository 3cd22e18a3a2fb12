#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/options/options.h"

namespace shardrun::job {

/// A reference of every section and key of the job file, made from the schema that checks them. For a terminal.
[[nodiscard]] std::string job_reference();

/// The part of the reference that describes one section; empty if there is no section of this name.
[[nodiscard]] std::string section_reference(std::string_view name);

/// The whole reference as the page docs/job-file.md.
[[nodiscard]] std::string job_reference_markdown();

/// A reference of the options that a model or plugin declares, in the same form. For a terminal.
[[nodiscard]] std::string options_reference(const std::vector<OptionSpec>& specs);

}  // namespace shardrun::job
