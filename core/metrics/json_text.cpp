#include "core/metrics/json_text.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cmath>
#include <iterator>

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
