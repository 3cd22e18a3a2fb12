#include "core/base/utf8.h"

#include <cstdint>
#include <cstring>

namespace shardrun {
namespace {

/// What the first byte says about the character. `least`: the smallest character that needs this many bytes.
struct LeadByte {
  std::size_t bytes;
  char32_t bits;
  char32_t least;
};

LeadByte lead_byte(unsigned char byte) noexcept {
  if (byte < 0x80U) {
    return {1, byte, 0};
  }
  if ((byte & 0xE0U) == 0xC0U) {
    return {2, byte & 0x1FU, 0x80};
  }
  if ((byte & 0xF0U) == 0xE0U) {
    return {3, byte & 0x0FU, 0x800};
  }
  if ((byte & 0xF8U) == 0xF0U) {
    return {4, byte & 0x07U, 0x10000};
  }
  return {0, 0, 0};
}

}  // namespace

Utf8Character utf8_at(std::string_view text, std::size_t at) noexcept {
  const LeadByte lead = lead_byte(static_cast<unsigned char>(text[at]));
  if (lead.bytes == 0 || lead.bytes > text.size() - at) {
    return {};
  }
  char32_t character = lead.bits;
  for (std::size_t i = 1; i < lead.bytes; ++i) {
    const auto byte = static_cast<unsigned char>(text[at + i]);
    if ((byte & 0xC0U) != 0x80U) {
      return {};
    }
    character = (character << 6U) | (byte & 0x3FU);
  }
  const bool surrogate = character >= 0xD800 && character <= 0xDFFF;
  if (character < lead.least || character > 0x10FFFF || surrogate) {
    return {};
  }
  return {character, lead.bytes};
}

std::optional<std::size_t> first_invalid_utf8(std::string_view text) noexcept {
  for (std::size_t at = 0; at < text.size();) {
    std::uint64_t next = 0;
    if (text.size() - at >= sizeof next) {
      std::memcpy(&next, text.data() + at, sizeof next);
      if ((next & 0x8080808080808080ULL) == 0) {
        at += sizeof next;
        continue;
      }
    }
    const std::size_t bytes = utf8_at(text, at).bytes;
    if (bytes == 0) {
      return at;
    }
    at += bytes;
  }
  return std::nullopt;
}

std::size_t bad_utf8_bytes(std::string_view text, std::size_t at) noexcept {
  const auto byte = [&](std::size_t i) {
    return at + i < text.size() ? static_cast<unsigned char>(text[at + i]) : static_cast<unsigned char>(0);
  };
  const auto continues = [&](std::size_t i) { return (byte(i) & 0xC0U) == 0x80U; };
  const unsigned char first = byte(0);
  if (first < 0xE0 || first > 0xF4) {
    return 1;
  }
  // The limits of the second byte exclude overlong forms, surrogates, and values past U+10FFFF.
  const unsigned char least = first == 0xE0 ? 0xA0 : first == 0xF0 ? 0x90 : 0x80;
  const unsigned char most = first == 0xED ? 0x9F : first == 0xF4 ? 0x8F : 0xBF;
  if (byte(1) < least || byte(1) > most) {
    return 1;
  }
  return first >= 0xF0 && continues(2) ? 3 : 2;
}

std::size_t begun_utf8(std::string_view text) noexcept {
  for (std::size_t back = 1; back < 4 && back <= text.size(); ++back) {
    const auto byte = static_cast<unsigned char>(text[text.size() - back]);
    if ((byte & 0xC0U) == 0x80U) {
      continue;
    }
    const std::size_t bytes = byte >= 0xF8 ? 1 : lead_byte(byte).bytes;
    return bytes > back ? back : 0;
  }
  return 0;
}

void append_utf8(std::string& text, char32_t character) {
  const auto continuation = [&](unsigned shift) { text += static_cast<char>(0x80U | ((character >> shift) & 0x3FU)); };
  if (character < 0x80) {
    text += static_cast<char>(character);
  } else if (character < 0x800) {
    text += static_cast<char>(0xC0U | (character >> 6U));
    continuation(0);
  } else if (character < 0x10000) {
    text += static_cast<char>(0xE0U | (character >> 12U));
    continuation(6);
    continuation(0);
  } else {
    text += static_cast<char>(0xF0U | (character >> 18U));
    continuation(12);
    continuation(6);
    continuation(0);
  }
}

std::string with_replacements(std::string_view text) {
  std::string result;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t valid = first_invalid_utf8(text.substr(at)).value_or(text.size() - at);
    result += text.substr(at, valid);
    at += valid;
    if (at < text.size()) {
      append_utf8(result, 0xFFFD);
      at += bad_utf8_bytes(text, at);
    }
  }
  return result;
}

}  // namespace shardrun
