#include "core/base/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "core/base/error.h"
#include "core/base/utf8.h"

namespace shardrun {
namespace {

bool is_control(char c) noexcept {
  const auto byte = static_cast<unsigned char>(c);
  return (byte < 0x20 && c != '\t') || byte == 0x7F;
}

/// The last offset at or before `end` at which a character of valid UTF-8 starts.
std::size_t character_start(std::string_view text, std::size_t end) noexcept {
  while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U) {
    --end;
  }
  return end;
}

}  // namespace

std::string_view trimmed(std::string_view text) noexcept {
  const std::size_t first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) {
    return {};
  }
  return text.substr(first, text.find_last_not_of(" \t") - first + 1);
}

std::size_t invalid_utf8(std::string_view text) noexcept {
  return first_invalid_utf8(text).value_or(std::string_view::npos);
}

std::size_t control_character(std::string_view text) noexcept {
  const auto* const found = std::find_if(text.begin(), text.end(), is_control);
  return found == text.end() ? std::string_view::npos : static_cast<std::size_t>(found - text.begin());
}

std::string escaped(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const std::size_t length = utf8_at(text, 0).bytes;
    if (length == 0 || is_control(text.front()) || text.front() == '\t') {
      result += fmt::format("\\x{:02x}", static_cast<unsigned char>(text.front()));
      text.remove_prefix(1);
    } else {
      result += text.substr(0, length);
      text.remove_prefix(length);
    }
  }
  return result;
}

std::string shown(std::string_view text) {
  constexpr std::size_t longest = 80;
  constexpr std::size_t tail = 20;
  const std::string whole = escaped(text.substr(0, 8 * longest));
  if (whole.size() <= longest) {
    return whole;
  }
  return fmt::format("{}... ({} bytes)", whole.substr(0, character_start(whole, longest - tail)), text.size());
}

bool is_name(std::string_view text) noexcept {
  const auto is_letter = [](char c) { return c >= 'a' && c <= 'z'; };
  return !text.empty() && is_letter(text.front()) && std::all_of(text.begin(), text.end(), [&](char c) {
    return is_letter(c) || (c >= '0' && c <= '9') || c == '_';
  });
}

void refuse_at(const std::string& where, std::string_view why) {
  throw Error(ErrorCode::job, fmt::format("{}: {}", where, why));
}

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
