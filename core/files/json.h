#pragma once

#include <boost/json/value.hpp>
#include <string_view>

namespace shardrun::files {

/// Parses JSON like Boost.JSON, except that a repeated key in an object is an error, and real numbers become the
/// doubles nearest to their text. Throws Error{data}: "cannot read SOURCE: …", with the byte offset in the text.
[[nodiscard]] boost::json::value parse_json_strictly(std::string_view text, std::string_view source);

}  // namespace shardrun::files
