#include "core/metrics/json_text.h"

#include <fmt/format.h>

#include <array>
#include <boost/json.hpp>
#include <charconv>
#include <cmath>
#include <iterator>
#include <utility>

namespace shardrun::metrics {
namespace {

template <typename Number>
void append_number(std::string& text, Number value) {
  std::array<char, 32> digits{};
  const auto [end, failed] = std::to_chars(digits.data(), digits.data() + digits.size(), value);
  text.append(digits.data(), end);
}

}  // namespace

void append_json(std::string& text, double value) {
  if (std::isfinite(value)) {
    append_number(text, value);
  } else {
    text += "null";
  }
}

void append_json(std::string& text, std::int64_t value) { append_number(text, value); }

void append_json(std::string& text, std::span<const double> values) {
  text += '[';
  for (const double& value : values) {
    text += &value == values.data() ? "" : ",";
    append_json(text, value);
  }
  text += ']';
}

void append_json(std::string& text, std::string_view value) {
  text += '"';
  for (const char c : value) {
    if (c == '"' || c == '\\') {
      text += '\\';
      text += c;
    } else if (static_cast<unsigned char>(c) < 0x20) {
      fmt::format_to(std::back_inserter(text), "\\u{:04x}", static_cast<unsigned>(c));
    } else {
      text += c;
    }
  }
  text += '"';
}

void append_json(std::string& text, JsonText json) { text += json.text; }

void append_json_value(std::string& text, const boost::json::value& value) {
  std::string_view separator;
  if (const boost::json::object* const object = value.if_object()) {
    text += '{';
    for (const boost::json::key_value_pair& pair : *object) {
      text += std::exchange(separator, ",");
      append_json(text, std::string_view(pair.key()));
      text += ':';
      append_json_value(text, pair.value());
    }
    text += '}';
  } else if (const boost::json::array* const array = value.if_array()) {
    text += '[';
    for (const boost::json::value& item : *array) {
      text += std::exchange(separator, ",");
      append_json_value(text, item);
    }
    text += ']';
  } else if (const double* const real = value.if_double()) {
    append_json(text, *real);
  } else if (const std::int64_t* const integer = value.if_int64()) {
    append_json(text, *integer);
  } else if (const boost::json::string* const string = value.if_string()) {
    append_json(text, std::string_view(*string));
  } else {
    text += boost::json::serialize(value);
  }
}

void for_numbers(std::string_view line,
                 const std::function<void(std::string_view name, std::string_view value)>& take) {
  while (line.size() > 2 && (line[0] == '{' || line[0] == ',') && line[1] == '"') {
    const std::size_t name = line.find('"', 2);
    const std::size_t value = name + 2;
    const std::size_t end = line.find_first_of(",}", name);
    if (name == std::string_view::npos || end == std::string_view::npos || end <= value || line[name + 1] != ':') {
      return;
    }
    take(line.substr(2, name - 2), line.substr(value, end - value));
    line.remove_prefix(end);
  }
}

}  // namespace shardrun::metrics
