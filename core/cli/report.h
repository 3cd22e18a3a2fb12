#pragma once

#include <boost/json/array.hpp>
#include <filesystem>
#include <string_view>

#include "core/cli/options.h"

namespace shardrun::cli {

/// Throws Error{usage} if there is a file that is no report and --replace is not given.
void require_report_or_new(const Parsed& parsed, const std::filesystem::path& file);

/// Writes the page that draws these runs (core/report/document.h), and prints the file's name. Throws like
/// require_report_or_new(), and Error{io}.
void write_report(const Parsed& parsed, const std::filesystem::path& file, std::string_view title,
                  boost::json::array runs);

}  // namespace shardrun::cli
