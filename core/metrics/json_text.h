#pragma once

#include <boost/json/fwd.hpp>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>

namespace shardrun::metrics {

/// Appends the shortest decimal that reads back as the same double; null for NaN and infinities.
void append_json(std::string& text, double value);
void append_json(std::string& text, std::int64_t value);
/// Appends an array.
void append_json(std::string& text, std::span<const double> values);
/// Appends a quoted and escaped text. REQUIRES: it is UTF-8.
void append_json(std::string& text, std::string_view value);
/// A text that is JSON.
struct JsonText {
  std::string_view text;
};
void append_json(std::string& text, JsonText json);
/// Appends JSON without white space. Boost.JSON's own serializer writes doubles in an unusual form (1.5E0).
void append_json_value(std::string& text, const boost::json::value& value);

/// Calls `take` for each field of a line of JSON that is a flat object of numbers, as in metrics.jsonl, with the value
/// as it is written. Stops where the line has another form.
void for_numbers(std::string_view line, const std::function<void(std::string_view name, std::string_view value)>& take);

}  // namespace shardrun::metrics
