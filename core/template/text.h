#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace shardrun::templates {

// Functions of Python's str, for texts in valid UTF-8. Indices and lengths count characters; offsets count bytes.

/// Escaping, quoting or changing the case of a text makes it at most this many times as large, in bytes.
inline constexpr std::size_t most_growth = 6;

enum CharacterTrait : std::uint16_t {
  alphabetic = 1,
  digit = 2,
  decimal = 4,
  numeric = 8,
  lower_case = 16,
  upper_case = 32,
  title_case = 64,
  printable_character = 128,
  case_ignorable = 256,
  space_character = 512,
  cased = 1024,
};

[[nodiscard]] std::uint16_t traits_of(char32_t character) noexcept;
[[nodiscard]] inline bool is_space(char32_t character) noexcept {
  return (traits_of(character) & space_character) != 0;
}

[[nodiscard]] std::size_t count_characters(std::string_view text) noexcept;
/// The characters of a text, each as its UTF-8 bytes.
[[nodiscard]] std::vector<std::string_view> characters_of(std::string_view text);
/// The offset in bytes of a character given by its index; the text's size if the index is past the end.
[[nodiscard]] std::size_t offset_of(std::string_view text, std::size_t character) noexcept;

enum class Side : std::uint8_t { left, right, both };
/// Removes white space, or the characters of `set`, from the ends of a text.
[[nodiscard]] std::string_view stripped(std::string_view text, Side side,
                                        std::optional<std::string_view> set = std::nullopt);
/// These functions return the offsets that text.find(wanted) and text.rfind(wanted) return. Their time grows with the
/// sum of the sizes, not with their product.
[[nodiscard]] std::size_t find_first(std::string_view text, std::string_view wanted);
[[nodiscard]] std::size_t find_last(std::string_view text, std::string_view wanted);

/// Receives the parts of a text one after the other, so that millions of parts need no memory.
using TakePart = std::function<void(std::string_view part)>;
/// Splits at white space. `most`: the number of cuts; -1: no limit. `from_right`: begins at the text's end, and gives
/// the last part first.
void split_at_space(std::string_view text, std::int64_t most, bool from_right, const TakePart& take);
/// Splits at a separator; otherwise as split_at_space(). REQUIRES: the separator is not empty.
void split_at(std::string_view text, std::string_view separator, std::int64_t most, bool from_right,
              const TakePart& take);
void each_line(std::string_view text, bool with_ends, const TakePart& take);
/// Replaces `from` by `to`. `most`: the number of replacements; -1: no limit. Throws Error{data} if the result has more
/// than `most_bytes`.
[[nodiscard]] std::string replaced(std::string_view text, std::string_view from, std::string_view to, std::int64_t most,
                                   std::size_t most_bytes);

[[nodiscard]] std::string upper(std::string_view text);
[[nodiscard]] std::string lower(std::string_view text);
/// Python's str.title(): a word begins after a character that has no case.
[[nodiscard]] std::string title(std::string_view text);
[[nodiscard]] std::string capitalized(std::string_view text);
[[nodiscard]] std::string swapped_case(std::string_view text);
/// Whether the text has a character of the case `wanted`, and none of another case.
[[nodiscard]] bool is_case(std::string_view text, CharacterTrait wanted);
[[nodiscard]] bool is_title(std::string_view text);
/// Whether the text is not empty and each of its characters has at least one of the traits.
[[nodiscard]] bool all_have(std::string_view text, unsigned traits);

/// The text as Python's repr() writes it.
[[nodiscard]] std::string quoted_text(std::string_view text);
/// The text as Python's json.dumps() writes it. `ascii`: whether characters outside of ASCII are escaped.
[[nodiscard]] std::string json_text(std::string_view text, bool ascii);

}  // namespace shardrun::templates
