#pragma once

#include <algorithm>
#include <charconv>
#include <stdexcept>
#include <string>
#include <string_view>

// Escapes for bytes in text: \n is a newline, \xHH a byte, \\ one backslash. A backslash at the end of a line removes
// the newline.

namespace shardrun::test {

/// The bytes for which a text stands. Throws std::runtime_error if a backslash begins anything else.
inline std::string unescaped(std::string_view text) {
  std::string bytes;
  while (!text.empty()) {
    const std::size_t plain = std::min(text.find('\\'), text.size());
    bytes += text.substr(0, plain);
    text.remove_prefix(plain);
    if (text.empty()) {
      break;
    }
    const char kind = text.size() > 1 ? text[1] : '\0';
    unsigned value = 0;
    if (kind == 'x' && text.size() > 3 && std::from_chars(&text[2], &text[2] + 2, value, 16).ptr == &text[2] + 2) {
      bytes += static_cast<char>(value);
      text.remove_prefix(2);
    } else if (kind == 'n' || kind == '\\') {
      bytes += kind == 'n' ? '\n' : '\\';
    } else if (kind != '\n') {
      throw std::runtime_error("expected \\n, \\xHH or \\\\ at " + std::string(text.substr(0, 40)));
    }
    text.remove_prefix(2);
  }
  return bytes;
}

/// The bytes as one line of text with escapes.
inline std::string escaped(std::string_view bytes) {
  constexpr std::string_view digits = "0123456789abcdef";
  std::string text;
  for (std::size_t i = 0; i < bytes.size(); ++i) {
    const char byte = bytes[i];
    const auto value = static_cast<unsigned char>(byte);
    if (byte == '\n' || byte == '\\') {
      text += byte == '\n' ? "\\n" : "\\\\";
    } else if (value < 0x20 || value >= 0x7f || (byte == ' ' && i + 1 == bytes.size())) {
      text += {'\\', 'x', digits[value >> 4U], digits[value & 15U]};
    } else {
      text += byte;
    }
  }
  return text;
}

}  // namespace shardrun::test
