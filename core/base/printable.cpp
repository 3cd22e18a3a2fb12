#include "core/base/printable.h"

#include <fmt/format.h>

#include <iterator>

#include "core/base/utf8.h"

namespace shardrun {
namespace {

bool acts_on_terminal(char32_t character) noexcept {
  const auto is_between = [&](char32_t first, char32_t last) { return character >= first && character <= last; };
  return (character < 0x20 && character != '\t') || is_between(0x7F, 0x9F) || is_between(0x200E, 0x200F) ||
         is_between(0x2028, 0x202E) || is_between(0x2066, 0x2069);
}

std::string escaped(std::string_view text, std::string_view kept) {
  std::string shown;
  shown.reserve(text.size());
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Character next = utf8_at(text, at);
    if (next.bytes == 0 ||
        (next.bytes == 1 && acts_on_terminal(next.character) && kept.find(text[at]) == std::string_view::npos)) {
      fmt::format_to(std::back_inserter(shown), "\\x{:02x}", static_cast<unsigned char>(text[at]));
    } else if (next.bytes > 1 && acts_on_terminal(next.character)) {
      fmt::format_to(std::back_inserter(shown), "\\u{{{:x}}}", static_cast<unsigned>(next.character));
    } else {
      shown += text.substr(at, next.bytes);
    }
    at += next.bytes == 0 ? 1 : next.bytes;
  }
  return shown;
}

}  // namespace

std::string printable(std::string_view text) { return escaped(text, ""); }

std::string printable_lines(std::string_view text) { return escaped(text, "\n"); }

}  // namespace shardrun
