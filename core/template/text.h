#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace shardrun::templates {

// Text as Python's str has it: valid UTF-8 here, counted in characters.

/// A text that is escaped, quoted or put into other letters has at most as many times the bytes.
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
/// The characters of a text, each as its bytes.
[[nodiscard]] std::vector<std::string_view> characters_of(std::string_view text);
/// The offset of a character; the end of the text past it.
[[nodiscard]] std::size_t offset_of(std::string_view text, std::size_t character) noexcept;

enum class Side : std::uint8_t { left, right, both };
/// Without white space, or characters of `set`, at its ends.
[[nodiscard]] std::string_view stripped(std::string_view text, Side side,
                                        std::optional<std::string_view> set = std::nullopt);
/// As text.find(wanted) and text.rfind(wanted), but in time that grows with the sum of the sizes, not their product.
[[nodiscard]] std::size_t find_first(std::string_view text, std::string_view wanted);
[[nodiscard]] std::size_t find_last(std::string_view text, std::string_view wanted);

/// Takes the parts of a text one by one, so that millions of them need no memory.
using TakePart = std::function<void(std::string_view part)>;
/// At white space. `most`: cuts; -1: all. `from_right`: the last ones, which come first.
void split_at_space(std::string_view text, std::int64_t most, bool from_right, const TakePart& take);
/// REQUIRES: a separator that is not empty.
void split_at(std::string_view text, std::string_view separator, std::int64_t most, bool from_right,
              const TakePart& take);
void each_line(std::string_view text, bool with_ends, const TakePart& take);
/// `most`: replacements; -1: all. Throws Error{data} if the result has more than `most_bytes`.
[[nodiscard]] std::string replaced(std::string_view text, std::string_view from, std::string_view to, std::int64_t most,
                                   std::size_t most_bytes);

[[nodiscard]] std::string upper(std::string_view text);
[[nodiscard]] std::string lower(std::string_view text);
/// Words begin behind characters without case, as in str.title().
[[nodiscard]] std::string title(std::string_view text);
[[nodiscard]] std::string capitalized(std::string_view text);
[[nodiscard]] std::string swapped_case(std::string_view text);
/// Whether there is a character with case, and none of another case.
[[nodiscard]] bool is_case(std::string_view text, CharacterTrait wanted);
[[nodiscard]] bool is_title(std::string_view text);
/// Whether the text is not empty and all its characters have one of the traits.
[[nodiscard]] bool all_have(std::string_view text, unsigned traits);

/// As Python's repr() writes it.
[[nodiscard]] std::string quoted_text(std::string_view text);
/// As JSON, as Python's json.dumps() writes it.
[[nodiscard]] std::string json_text(std::string_view text, bool ascii);

}  // namespace shardrun::templates
