#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/job/raw.h"

namespace shardrun::job {

/// A line `include = path`. The settings of the file with this line replace those of the included file.
struct RawInclude {
  std::string path;
  std::string where;
};

/// The contents of one job file.
struct RawText {
  std::vector<RawInclude> includes;
  std::vector<RawSection> sections;
};

/// The syntax of a job file:
///
///   include = path        ; before the first section; may be given more than once
///   [section]             ; a comment, after ; or # at the start of a line or after white space
///   key = value
///   key = "a value"       ; for a value with " ;" in it, or white space at its ends; "" is a quote within
///
/// Throws Error{job} for anything else. The message begins with "file:line: ", or "file: " if no line is to blame.
[[nodiscard]] RawText parse_ini(std::string_view text, const std::string& file);

/// The value as it must be written after `=`: quoted if necessary.
[[nodiscard]] std::string write_value(std::string_view value);

}  // namespace shardrun::job
