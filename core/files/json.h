#pragma once

#include <boost/json/value.hpp>
#include <string_view>

namespace shardrun::files {

/// Parses JSON as Boost.JSON does, with two differences: a repeated key in an object is an error, and a real number
/// becomes the double nearest to its text. Throws Error{data} "cannot read SOURCE: …", with the repeated key or the
/// byte offset of another error.
[[nodiscard]] boost::json::value parse_json_strictly(std::string_view text, std::string_view source);

}  // namespace shardrun::files
