#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

// All texts given to these functions are valid UTF-8. bench/fixtures/make_unicode_tables.py names the Unicode versions
// of the tables.

namespace shardrun::text {

/// Classes of characters that the pre-tokenizers of a tokenizer.json distinguish.
enum CharacterClass : std::uint8_t {
  letter = 1,    ///< \p{L}
  number = 2,    ///< \p{N}
  space = 4,     ///< \s
  upper = 8,     ///< [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]
  lower = 16,    ///< [\p{Ll}\p{Lm}\p{Lo}\p{M}]
  numeric = 32,  ///< the class of the pre-tokenizer Digits, which uses a later Unicode version than \p{N}
  word = 64,     ///< \w
};

/// A table with the classes of every code point, one byte each. The first call makes it.
[[nodiscard]] const std::uint8_t* character_classes();

/// A character and the number of bytes of its UTF-8 form.
struct Character {
  char32_t code_point = 0;
  std::size_t bytes = 1;
};

/// Decodes the character at text[at]. REQUIRES: a character begins there.
[[nodiscard]] inline Character character_at(std::string_view text, std::size_t at) noexcept {
  const auto byte = [&](std::size_t i) { return static_cast<char32_t>(static_cast<unsigned char>(text[at + i])); };
  const char32_t first = byte(0);
  if (first < 0x80) {
    return {first, 1};
  }
  if (first < 0xE0) {
    return {(first & 0x1FU) << 6U | (byte(1) & 0x3FU), 2};
  }
  if (first < 0xF0) {
    return {(first & 0x0FU) << 12U | (byte(1) & 0x3FU) << 6U | (byte(2) & 0x3FU), 3};
  }
  return {(first & 0x07U) << 18U | (byte(1) & 0x3FU) << 12U | (byte(2) & 0x3FU) << 6U | (byte(3) & 0x3FU), 4};
}

/// The offset of the character before `at`. REQUIRES: at > 0.
[[nodiscard]] inline std::size_t character_before(std::string_view text, std::size_t at) noexcept {
  do {
    --at;
  } while ((static_cast<unsigned char>(text[at]) & 0xC0U) == 0x80U);
  return at;
}

/// Appends the text in Normalization Form C. Takes linear time, except that the marks of one character are sorted.
void append_nfc(std::string_view text, std::string& to);

}  // namespace shardrun::text
