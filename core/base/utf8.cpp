#include "core/base/utf8.h"

namespace shardrun {
namespace {

/// What the first byte tells about the character. `least`: the smallest one that needs that many bytes.
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
    const std::size_t bytes = utf8_at(text, at).bytes;
    if (bytes == 0) {
      return at;
    }
    at += bytes;
  }
  return std::nullopt;
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

}  // namespace shardrun
