#include "core/text/parts.h"

#include <optional>
#include <utility>

#include "core/text/byte_pairs.h"

namespace shardrun::text {

void append_replaced(std::string_view text, std::string_view from, std::string_view to, std::string& result) {
  std::size_t at = 0;
  for (std::size_t found = text.find(from); found != std::string_view::npos; found = text.find(from, at)) {
    result += text.substr(at, found - at);
    result += to;
    at = found + from.size();
  }
  result += text.substr(at);
}

std::string TokenDecoder::decode(std::string_view content, bool is_first) const {
  if (byte_level) {
    return bytes_of_alphabet(content).value_or(std::string(content));
  }
  std::string text(content);
  const auto replace = [&](std::string_view from, std::string_view to) {
    append_replaced(std::exchange(text, {}), from, to, text);
  };
  if (is_first && !dropped_of_first.empty()) {
    replace(dropped_of_first, "");
  }
  for (const auto& [from, to] : replacements) {
    replace(from, to);
  }
  if (byte_fallback) {
    if (const std::optional<char> byte = byte_of_token(text)) {
      return {*byte};
    }
  }
  return text;
}

}  // namespace shardrun::text
