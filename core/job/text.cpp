#include "core/job/text.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/base/error.h"

namespace shardrun::job {
namespace {

bool in(unsigned char byte, unsigned low, unsigned high) noexcept { return byte >= low && byte <= high; }

/// The length of the well-formed sequence at the start of `text`, or 0. The range of the second byte excludes overlong
/// forms, surrogates and values past U+10FFFF.
std::size_t sequence_length(std::string_view text) noexcept {
  const auto byte = [&](std::size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U; };
  const auto first = static_cast<unsigned char>(byte(0));
  const auto continues = [&](std::size_t i) { return (byte(i) & 0xC0U) == 0x80U; };
  if (first < 0x80) {
    return 1;
  }
  if (in(first, 0xC2, 0xDF)) {
    return continues(1) ? 2 : 0;
  }
  const auto second = static_cast<unsigned char>(byte(1));
  if (in(first, 0xE0, 0xEF)) {
    const bool fits = in(second, first == 0xE0 ? 0xA0 : 0x80, first == 0xED ? 0x9F : 0xBF);
    return fits && continues(2) ? 3 : 0;
  }
  if (in(first, 0xF0, 0xF4)) {
    const bool fits = in(second, first == 0xF0 ? 0x90 : 0x80, first == 0xF4 ? 0x8F : 0xBF);
    return fits && continues(2) && continues(3) ? 4 : 0;
  }
  return 0;
}

bool is_control(char c) noexcept {
  const auto byte = static_cast<unsigned char>(c);
  return (byte < 0x20 && c != '\t') || byte == 0x7F;
}

/// The last offset not after `end` at which a character of valid UTF-8 starts.
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
  std::size_t at = 0;
  while (at < text.size()) {
    const std::size_t length = sequence_length(text.substr(at));
    if (length == 0) {
      return at;
    }
    at += length;
  }
  return std::string_view::npos;
}

std::size_t control_character(std::string_view text) noexcept {
  const auto* const found = std::find_if(text.begin(), text.end(), is_control);
  return found == text.end() ? std::string_view::npos : static_cast<std::size_t>(found - text.begin());
}

std::string escaped(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const std::size_t length = sequence_length(text);
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

}  // namespace shardrun::job
