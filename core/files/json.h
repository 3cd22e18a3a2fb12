#pragma once

#include <boost/json/value.hpp>
#include <string_view>

namespace shardrun::files {

/// Parses JSON as Boost.JSON does, except that a repeated key in an object is an error, and real numbers are the
/// doubles nearest to their text. Throws Error{data}: "cannot read SOURCE: …", with the byte offset from the start of
/// the text.
[[nodiscard]] boost::json::value parse_json_strictly(std::string_view text, std::string_view source);

}  // namespace shardrun::files
