#pragma once

#include <boost/json/value.hpp>
#include <string_view>

namespace shardrun::checkpoint {

/// Parses JSON as Boost.JSON does, except that an object with the same key twice is a fault and not a silent choice of
/// one. Throws Error{data}: "cannot read SOURCE: …", with the byte offset from the text's begin.
[[nodiscard]] boost::json::value parse_json_strictly(std::string_view text, std::string_view source);

}  // namespace shardrun::checkpoint
