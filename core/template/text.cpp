#include "core/template/text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

#include "core/base/error.h"
#include "core/base/utf8.h"

namespace shardrun::templates {
namespace {

/// A run of characters with equal traits. It begins at `first` and ends before the next run.
struct TraitRun {
  char32_t first;
  std::uint16_t traits;
};
/// Every `step`-th character from `first` to `last` changes its case by adding `difference`.
struct CaseRun {
  char32_t first;
  char32_t last;
  std::int8_t step;
  std::int32_t difference;
};
/// A character that becomes several when its case changes.
struct CaseText {
  char32_t character;
  const char* text;
};

#include "core/template/unicode_runs.inc"

template <std::size_t Runs, std::size_t Texts>
void append_case(std::string& to, char32_t character, const CaseRun (&runs)[Runs], const CaseText (&texts)[Texts]) {
  const CaseText* const text =
      std::lower_bound(std::begin(texts), std::end(texts), character,
                       [](const CaseText& known, char32_t wanted) { return known.character < wanted; });
  if (text != std::end(texts) && text->character == character) {
    to += text->text;
    return;
  }
  const CaseRun* run = std::upper_bound(std::begin(runs), std::end(runs), character,
                                        [](char32_t wanted, const CaseRun& known) { return wanted < known.first; });
  if (run != std::begin(runs)) {
    --run;
    if (character <= run->last && (character - run->first) % static_cast<char32_t>(run->step) == 0) {
      character = static_cast<char32_t>(static_cast<std::int32_t>(character) + run->difference);
    }
  }
  append_utf8(to, character);
}

void append_upper(std::string& to, char32_t character) { append_case(to, character, upper_runs, upper_texts); }
void append_lower(std::string& to, char32_t character) { append_case(to, character, lower_runs, lower_texts); }
void append_title(std::string& to, char32_t character) { append_case(to, character, title_runs, title_texts); }

constexpr char32_t capital_sigma = 0x3A3;
constexpr char32_t final_sigma = 0x3C2;

bool is_cased(char32_t character) { return (traits_of(character) & cased) != 0; }
bool is_ignorable(char32_t character) { return (traits_of(character) & case_ignorable) != 0; }

std::size_t first_byte_before(std::string_view text, std::size_t end) {
  do {
    --end;
  } while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0U) == 0x80U);
  return end;
}

/// A character and its offset in a text.
struct PlacedCharacter {
  char32_t character;
  std::size_t at;
};

/// Iterates over the characters of a text.
class Characters {
 public:
  explicit Characters(std::string_view text) : text_(text) {}

  std::optional<PlacedCharacter> next() {
    if (at_ >= text_.size()) {
      return std::nullopt;
    }
    const Utf8Character found = utf8_at(text_, at_);
    const std::size_t at = std::exchange(at_, at_ + std::max<std::size_t>(found.bytes, 1));
    return PlacedCharacter{found.character, at};
  }

 private:
  std::string_view text_;
  std::size_t at_ = 0;
};

/// Appends a character in lower case. A capital sigma becomes the final sigma at the end of a word.
void append_lower_at(std::string& to, std::string_view text, const PlacedCharacter& placed) {
  if (placed.character != capital_sigma) {
    append_lower(to, placed.character);
    return;
  }
  bool is_behind_case = false;
  for (std::size_t at = placed.at; at > 0;) {
    at = first_byte_before(text, at);
    if (const char32_t character = utf8_at(text, at).character; !is_ignorable(character)) {
      is_behind_case = is_cased(character);
      break;
    }
  }
  bool is_before_case = false;
  Characters rest(text.substr(placed.at));
  rest.next();
  while (const std::optional<PlacedCharacter> next = rest.next()) {
    if (!is_ignorable(next->character)) {
      is_before_case = is_cased(next->character);
      break;
    }
  }
  append_utf8(to, is_behind_case && !is_before_case ? final_sigma : char32_t{0x3C3});
}

/// Wanted texts of at least this many bytes are searched for with an algorithm that takes linear time.
constexpr std::size_t short_wanted = 64;

bool is_line_end(char32_t c) {
  return (c >= 0x0A && c <= 0x0D) || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

}  // namespace

std::uint16_t traits_of(char32_t character) noexcept {
  const TraitRun* const run =
      std::upper_bound(std::begin(trait_runs), std::end(trait_runs), character,
                       [](char32_t wanted, const TraitRun& known) { return wanted < known.first; });
  return std::prev(run)->traits;
}

std::size_t count_characters(std::string_view text) noexcept {
  return static_cast<std::size_t>(
      std::ranges::count_if(text, [](char byte) { return (static_cast<unsigned char>(byte) & 0xC0U) != 0x80U; }));
}

std::vector<std::string_view> characters_of(std::string_view text) {
  std::vector<std::string_view> characters;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t bytes = std::max<std::size_t>(utf8_at(text, at).bytes, 1);
    characters.push_back(text.substr(at, bytes));
    at += bytes;
  }
  return characters;
}

std::size_t offset_of(std::string_view text, std::size_t character) noexcept {
  std::size_t at = 0;
  for (; at < text.size(); ++at) {
    if ((static_cast<unsigned char>(text[at]) & 0xC0U) != 0x80U && character-- == 0) {
      break;
    }
  }
  return at;
}

std::string_view stripped(std::string_view text, Side side, std::optional<std::string_view> set) {
  std::vector<bool> is_in_set;
  for (std::string_view rest = set.value_or(""); !rest.empty();) {
    const Utf8Character found = utf8_at(rest, 0);
    is_in_set.resize(std::max<std::size_t>(is_in_set.size(), found.character + std::size_t{1}));
    is_in_set[found.character] = true;
    rest.remove_prefix(std::max<std::size_t>(found.bytes, 1));
  }
  const auto goes = [&](std::size_t at) {
    const char32_t character = utf8_at(text, at).character;
    return set ? character < is_in_set.size() && is_in_set[character] : is_space(character);
  };
  while (side != Side::right && !text.empty()) {
    const std::size_t bytes = std::max<std::size_t>(utf8_at(text, 0).bytes, 1);
    if (!goes(0)) {
      break;
    }
    text.remove_prefix(bytes);
  }
  while (side != Side::left && !text.empty()) {
    const std::size_t first = first_byte_before(text, text.size());
    if (!goes(first)) {
      break;
    }
    text = text.substr(0, first);
  }
  return text;
}

void split_at_space(std::string_view text, std::int64_t most, bool from_right, const TakePart& take) {
  std::int64_t cuts = 0;
  const Side near = from_right ? Side::right : Side::left;
  for (text = stripped(text, near); !text.empty(); text = stripped(text, near)) {
    if (most >= 0 && cuts++ == most) {
      take(text);
      break;
    }
    std::size_t cut = from_right ? text.size() : 0;
    if (from_right) {
      while (cut > 0) {
        const std::size_t first = first_byte_before(text, cut);
        if (is_space(utf8_at(text, first).character)) {
          break;
        }
        cut = first;
      }
      take(text.substr(cut));
      text = text.substr(0, cut);
    } else {
      while (cut < text.size() && !is_space(utf8_at(text, cut).character)) {
        cut += std::max<std::size_t>(utf8_at(text, cut).bytes, 1);
      }
      take(text.substr(0, cut));
      text.remove_prefix(cut);
    }
  }
}

std::size_t find_first(std::string_view text, std::string_view wanted) {
  if (wanted.size() < short_wanted) {
    return text.find(wanted);
  }
  const void* const found = ::memmem(text.data(), text.size(), wanted.data(), wanted.size());
  return found == nullptr ? std::string_view::npos
                          : static_cast<std::size_t>(static_cast<const char*>(found) - text.data());
}

std::size_t find_last(std::string_view text, std::string_view wanted) {
  if (wanted.size() < short_wanted) {
    return text.rfind(wanted);
  }
  const std::size_t behind =
      find_first(std::string(text.rbegin(), text.rend()), std::string(wanted.rbegin(), wanted.rend()));
  return behind == std::string_view::npos ? behind : text.size() - behind - wanted.size();
}

void split_at(std::string_view text, std::string_view separator, std::int64_t most, bool from_right,
              const TakePart& take) {
  if (from_right && separator.size() >= short_wanted) {
    const std::string mirrored(text.rbegin(), text.rend());
    split_at(mirrored, std::string(separator.rbegin(), separator.rend()), most, false, [&](std::string_view part) {
      const auto begin = static_cast<std::size_t>(part.data() - mirrored.data());
      take(text.substr(text.size() - begin - part.size(), part.size()));
    });
    return;
  }
  for (std::int64_t cuts = 0; most < 0 || cuts < most; ++cuts) {
    const std::size_t at = from_right ? find_last(text, separator) : find_first(text, separator);
    if (at == std::string_view::npos) {
      break;
    }
    take(from_right ? text.substr(at + separator.size()) : text.substr(0, at));
    text = from_right ? text.substr(0, at) : text.substr(at + separator.size());
  }
  take(text);
}

void each_line(std::string_view text, bool with_ends, const TakePart& take) {
  std::size_t begin = 0;
  for (std::size_t at = 0; at < text.size();) {
    const Utf8Character found = utf8_at(text, at);
    std::size_t next = at + std::max<std::size_t>(found.bytes, 1);
    if (is_line_end(found.character)) {
      if (found.character == '\r' && next < text.size() && text[next] == '\n') {
        ++next;
      }
      take(text.substr(begin, (with_ends ? next : at) - begin));
      begin = next;
    }
    at = next;
  }
  if (begin < text.size()) {
    take(text.substr(begin));
  }
}

std::string replaced(std::string_view text, std::string_view from, std::string_view to, std::int64_t most,
                     std::size_t most_bytes) {
  std::string result;
  const auto put = [&](std::string_view part) {
    if (result.size() + part.size() > most_bytes) {
      throw Error(ErrorCode::data, fmt::format("a text has more than {} bytes", most_bytes));
    }
    result += part;
  };
  std::int64_t done = 0;
  if (from.empty()) {
    for (std::size_t bytes = 0; !text.empty(); text.remove_prefix(bytes)) {
      bytes = std::max<std::size_t>(utf8_at(text, 0).bytes, 1);
      if (most < 0 || done < most) {
        put(to);
        ++done;
      }
      put(text.substr(0, bytes));
    }
    if (most < 0 || done < most) {
      put(to);
    }
    return result;
  }
  for (; most < 0 || done < most; ++done) {
    const std::size_t at = find_first(text, from);
    if (at == std::string_view::npos) {
      break;
    }
    put(text.substr(0, at));
    put(to);
    text.remove_prefix(at + from.size());
  }
  put(text);
  return result;
}

std::string upper(std::string_view text) {
  std::string result;
  Characters characters(text);
  while (const std::optional<PlacedCharacter> placed = characters.next()) {
    append_upper(result, placed->character);
  }
  return result;
}

std::string lower(std::string_view text) {
  Characters characters(text);
  std::string result;
  while (const std::optional<PlacedCharacter> placed = characters.next()) {
    append_lower_at(result, text, *placed);
  }
  return result;
}

std::string title(std::string_view text) {
  Characters characters(text);
  std::string result;
  bool in_word = false;
  while (const std::optional<PlacedCharacter> placed = characters.next()) {
    if (in_word) {
      append_lower_at(result, text, *placed);
    } else {
      append_title(result, placed->character);
    }
    in_word = is_cased(placed->character);
  }
  return result;
}

std::string capitalized(std::string_view text) {
  Characters characters(text);
  std::string result;
  while (const std::optional<PlacedCharacter> placed = characters.next()) {
    if (placed->at == 0) {
      append_title(result, placed->character);
    } else {
      append_lower_at(result, text, *placed);
    }
  }
  return result;
}

std::string swapped_case(std::string_view text) {
  Characters characters(text);
  std::string result;
  while (const std::optional<PlacedCharacter> placed = characters.next()) {
    const unsigned traits = traits_of(placed->character);
    if ((traits & upper_case) != 0) {
      append_lower_at(result, text, *placed);
    } else if ((traits & lower_case) != 0) {
      append_upper(result, placed->character);
    } else {
      append_utf8(result, placed->character);
    }
  }
  return result;
}

bool is_case(std::string_view text, CharacterTrait wanted) {
  bool found = false;
  Characters characters(text);
  while (const std::optional<PlacedCharacter> placed = characters.next()) {
    const unsigned traits = traits_of(placed->character);
    if ((traits & (lower_case | upper_case | title_case) & ~static_cast<unsigned>(wanted)) != 0) {
      return false;
    }
    found = found || (traits & wanted) != 0;
  }
  return found;
}

bool is_title(std::string_view text) {
  bool found = false;
  bool in_word = false;
  Characters characters(text);
  while (const std::optional<PlacedCharacter> placed = characters.next()) {
    const unsigned traits = traits_of(placed->character);
    if ((traits & (upper_case | title_case)) != 0) {
      if (in_word) {
        return false;
      }
      in_word = found = true;
    } else if ((traits & lower_case) != 0) {
      if (!in_word) {
        return false;
      }
      in_word = found = true;
    } else {
      in_word = false;
    }
  }
  return found;
}

bool all_have(std::string_view text, unsigned traits) {
  Characters characters(text);
  while (const std::optional<PlacedCharacter> placed = characters.next()) {
    if ((traits_of(placed->character) & traits) == 0) {
      return false;
    }
  }
  return !text.empty();
}

std::string quoted_text(std::string_view text) {
  const char mark = text.find('\'') != std::string_view::npos && text.find('"') == std::string_view::npos ? '"' : '\'';
  std::string result(1, mark);
  Characters characters(text);
  while (const std::optional<PlacedCharacter> placed = characters.next()) {
    const char32_t c = placed->character;
    if (c == static_cast<char32_t>(mark) || c == '\\') {
      result += '\\';
      result += static_cast<char>(c);
    } else if (c == '\n') {
      result += "\\n";
    } else if (c == '\r') {
      result += "\\r";
    } else if (c == '\t') {
      result += "\\t";
    } else if ((traits_of(c) & printable_character) != 0) {
      append_utf8(result, c);
    } else if (c < 0x100) {
      result += fmt::format("\\x{:02x}", static_cast<std::uint32_t>(c));
    } else if (c < 0x10000) {
      result += fmt::format("\\u{:04x}", static_cast<std::uint32_t>(c));
    } else {
      result += fmt::format("\\U{:08x}", static_cast<std::uint32_t>(c));
    }
  }
  return result + mark;
}

std::string json_text(std::string_view text, bool ascii) {
  std::string result = "\"";
  Characters characters(text);
  while (const std::optional<PlacedCharacter> placed = characters.next()) {
    const char32_t c = placed->character;
    constexpr std::string_view special = "\"\\\n\r\t\b\f";
    if (c < 0x80 && c != 0 && special.find(static_cast<char>(c)) != std::string_view::npos) {
      result += '\\';
      result += "\"\\nrtbf"[special.find(static_cast<char>(c))];
    } else if (c < 0x20 || (ascii && c >= 0x7F && c < 0x10000)) {
      result += fmt::format("\\u{:04x}", static_cast<std::uint32_t>(c));
    } else if (ascii && c >= 0x10000) {
      const std::uint32_t rest = static_cast<std::uint32_t>(c) - 0x10000;
      result += fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + (rest >> 10U), 0xDC00 + (rest & 0x3FFU));
    } else {
      append_utf8(result, c);
    }
  }
  return result + '"';
}

}  // namespace shardrun::templates
