#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>

namespace shardrun {

/// A code point and its number of UTF-8 bytes; 0 bytes if there is no valid character.
struct Utf8Character {
  char32_t character = 0;
  std::size_t bytes = 0;
};

/// The character that starts at text[at], which must exist. Overlong forms, surrogates and values past U+10FFFF are
/// invalid (RFC 3629).
[[nodiscard]] Utf8Character utf8_at(std::string_view text, std::size_t at) noexcept;

/// The offset of the first byte where no valid character starts; nothing if all of `text` is valid.
[[nodiscard]] std::optional<std::size_t> first_invalid_utf8(std::string_view text) noexcept;

/// The number of bytes of an invalid sequence: the longest beginning of a valid character, or one byte. Python and
/// Unicode put one U+FFFD for these bytes. REQUIRES: no valid character starts at text[at].
[[nodiscard]] std::size_t bad_utf8_bytes(std::string_view text, std::size_t at) noexcept;

/// The number of bytes at the end of `text` that begin a character which further bytes may complete.
[[nodiscard]] std::size_t begun_utf8(std::string_view text) noexcept;

/// Appends a character. REQUIRES: it is a Unicode scalar value.
void append_utf8(std::string& text, char32_t character);

/// Replaces invalid UTF-8 by U+FFFD: one for each invalid byte or truncated character, as Python's
/// bytes.decode(errors="replace") does.
[[nodiscard]] std::string with_replacements(std::string_view text);

}  // namespace shardrun
