#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

// Text here is valid UTF-8. bench/fixtures/make_unicode_tables.py says whose Unicode this is.

namespace shardrun::text {

/// What the pre-tokenizers of a tokenizer.json ask of a character.
enum CharacterClass : std::uint8_t {
  letter = 1,    ///< \p{L}
  number = 2,    ///< \p{N}
  space = 4,     ///< \s
  upper = 8,     ///< [\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]
  lower = 16,    ///< [\p{Ll}\p{Lm}\p{Lo}\p{M}]
  numeric = 32,  ///< of the pre-tokenizer Digits, which knows a later Unicode
  word = 64,     ///< \w
};

/// The classes of every code point: one byte each, made at the first call.
[[nodiscard]] const std::uint8_t* character_classes();

/// A character and the number of its bytes.
struct Character {
  char32_t code_point = 0;
  std::size_t bytes = 1;
};

/// REQUIRES: text[at] begins a character.
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

/// The offset of the character before `at`. REQUIRES: there is one.
[[nodiscard]] inline std::size_t character_before(std::string_view text, std::size_t at) noexcept {
  do {
    --at;
  } while ((static_cast<unsigned char>(text[at]) & 0xC0U) == 0x80U);
  return at;
}

/// Appends the text in Normalization Form C. Takes time linear in the text, except that marks on one character are
/// sorted.
void append_nfc(std::string_view text, std::string& to);

}  // namespace shardrun::text
