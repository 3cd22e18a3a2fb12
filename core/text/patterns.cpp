#include "core/text/patterns.h"

#include <algorithm>
#include <iterator>

#include "core/text/unicode.h"

namespace shardrun::text {

namespace {

// A regular expression takes the first alternative that matches. So each function below tries them in order and returns
// at the first match. `other` in a name stands for [^\s\p{L}\p{N}].

using Classes = const unsigned char*;

constexpr unsigned char not_other = letter | number | space;

/// A character's classes, and the offset of the next character.
struct Seen {
  unsigned char classes = 0;
  std::size_t end = 0;
};

Seen look(std::string_view text, std::size_t at, Classes classes) {
  if (const auto byte = static_cast<unsigned char>(text[at]); byte < 0x80) {
    return {classes[byte], at + 1};
  }
  const Character character = character_at(text, at);
  return {classes[character.code_point], at + character.bytes};
}

/// The end of the characters from `at` on that have one of the classes in `wanted`.
std::size_t run_of(std::string_view text, std::size_t at, Classes classes, unsigned char wanted) {
  while (at < text.size()) {
    if (const auto byte = static_cast<unsigned char>(text[at]); byte < 0x80) {  // the fast path for ASCII
      if ((classes[byte] & wanted) == 0) {
        break;
      }
      ++at;
      continue;
    }
    const Seen seen = look(text, at, classes);
    if ((seen.classes & wanted) == 0) {
      break;
    }
    at = seen.end;
  }
  return at;
}

std::size_t run_of_others(std::string_view text, std::size_t at, Classes classes) {
  while (at < text.size()) {
    const Seen seen = look(text, at, classes);
    if ((seen.classes & not_other) != 0) {
      break;
    }
    at = seen.end;
  }
  return at;
}

bool is_newline(char c) { return c == '\n' || c == '\r'; }

char folded(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c + ('a' - 'A')) : c; }

/// Matches 's|'t|'re|'ve|'m|'ll|'d at `at`. Returns the end of the match; `at` if there is none.
std::size_t contraction(std::string_view text, std::size_t at) {
  if (text[at] != '\'' || at + 1 == text.size()) {
    return at;
  }
  const char first = text[at + 1];
  if (first == 's' || first == 't' || first == 'm' || first == 'd') {
    return at + 2;
  }
  const char second = at + 2 < text.size() ? text[at + 2] : '\0';
  const bool is_pair = second == 'e' ? first == 'r' || first == 'v' : second == 'l' && first == 'l';
  return is_pair ? at + 3 : at;
}

/// Matches (?i:'s|'t|'re|'ve|'m|'ll|'d) at `at`. Returns the end of the match; `at` if there is none. Without case,
/// U+017F (long s) matches s.
std::size_t any_contraction(std::string_view text, std::size_t at) {
  if (at >= text.size() || text[at] != '\'' || at + 1 == text.size()) {
    return at;
  }
  if (text.substr(at + 1, 2) == "\xC5\xBF") {
    return at + 3;
  }
  const char word[] = {'\'', folded(text[at + 1]), at + 2 < text.size() ? folded(text[at + 2]) : '\0'};
  return at + contraction(std::string_view(word, 3), 0);
}

/// Matches \s+(?!\S)|\s+ and returns the end of the match. `end`: the end of the run of white space. The match leaves
/// out the last character if a non-space follows.
std::size_t white_space(std::string_view text, std::size_t at, std::size_t end) {
  if (end == text.size()) {
    return end;
  }
  const std::size_t last = character_before(text, end);
  return last > at ? last : end;
}

/// Matches \s*[\r\n]+|\s+(?!\S)|\s+ and returns the end of the match.
std::size_t lines_or_space(std::string_view text, std::size_t at, Classes classes) {
  const std::size_t end = run_of(text, at, classes, space);
  for (std::size_t i = end; i > at; --i) {
    if (is_newline(text[i - 1])) {
      return i;
    }
  }
  return white_space(text, at, end);
}

/// The offset after a blank that a character of [^\s\p{L}\p{N}] follows; `at` if there is no such blank.
std::size_t behind_blank(std::string_view text, std::size_t at, Classes classes) {
  if (text[at] != ' ' || at + 1 == text.size()) {
    return at;
  }
  return (look(text, at + 1, classes).classes & not_other) == 0 ? at + 1 : at;
}

std::size_t gpt2(std::string_view text, std::size_t at, Classes classes) {
  if (const std::size_t end = contraction(text, at); end > at) {
    return end;
  }
  Seen seen = look(text, at, classes);
  std::size_t first = at;
  if (text[at] == ' ' && at + 1 < text.size()) {
    if (const Seen next = look(text, at + 1, classes); (next.classes & space) == 0) {
      seen = next;
      first = at + 1;
    }
  }
  if ((seen.classes & letter) != 0) {
    return run_of(text, seen.end, classes, letter);
  }
  if ((seen.classes & number) != 0) {
    return run_of(text, seen.end, classes, number);
  }
  if ((seen.classes & space) == 0) {
    return run_of_others(text, seen.end, classes);
  }
  return white_space(text, first, run_of(text, seen.end, classes, space));
}

/// Matches \p{N}{1,most} and returns the end of the match.
std::size_t numbers(std::string_view text, std::size_t at, Classes classes, int most) {
  for (int found = 0; found < most && at < text.size(); ++found) {
    const Seen seen = look(text, at, classes);
    if ((seen.classes & number) == 0) {
      break;
    }
    at = seen.end;
  }
  return at;
}

/// Matches " ?[^\s\p{L}\p{N}]+[\r\n]*", or with `slash` " ?[^\s\p{L}\p{N}]+[\r\n/]*". Returns the end of the match;
/// `at` if there is none.
std::size_t others_and_lines(std::string_view text, std::size_t at, Classes classes, bool slash) {
  const std::size_t first = behind_blank(text, at, classes);
  std::size_t end = run_of_others(text, first, classes);
  if (end == first) {
    return at;
  }
  while (end < text.size() && (is_newline(text[end]) || (slash && text[end] == '/'))) {
    ++end;
  }
  return end;
}

template <int most_digits>
std::size_t cl100k(std::string_view text, std::size_t at, Classes classes) {
  if (text[at] == '\'') {
    if (const std::size_t end = any_contraction(text, at); end > at) {
      return end;
    }
  }
  const Seen seen = look(text, at, classes);
  if ((seen.classes & letter) != 0) {
    return run_of(text, seen.end, classes, letter);
  }
  if ((seen.classes & number) != 0) {
    return numbers(text, at, classes, most_digits);
  }
  if (!is_newline(text[at]) && seen.end < text.size()) {
    if (const Seen next = look(text, seen.end, classes); (next.classes & letter) != 0) {
      return run_of(text, next.end, classes, letter);
    }
  }
  const std::size_t end = others_and_lines(text, at, classes, false);
  return end > at ? end : lines_or_space(text, at, classes);
}

/// Matches [upper]*[lower]+ at `at`. Returns the end of the match; `at` if there is none. If no lower-case character
/// follows [upper]*, it backtracks to the last character that is in both classes, which then matches [lower]+.
std::size_t title(std::string_view text, std::size_t at, Classes classes) {
  std::size_t end = at;
  std::size_t last = at;
  while (end < text.size()) {
    const Seen seen = look(text, end, classes);
    if ((seen.classes & upper) == 0) {
      return (seen.classes & lower) != 0 ? run_of(text, seen.end, classes, lower) : last;
    }
    end = seen.end;
    last = (seen.classes & lower) != 0 ? end : last;
  }
  return last;
}

/// Matches [upper]+[lower]* at `at`. Returns the end of the match; `at` if there is none.
std::size_t capitals(std::string_view text, std::size_t at, Classes classes) {
  const std::size_t end = run_of(text, at, classes, upper);
  return end > at ? run_of(text, end, classes, lower) : at;
}

/// Matches [^\r\n\p{L}\p{N}]?[upper]*[lower]+|[^\r\n\p{L}\p{N}]?[upper]+[lower]* at `at`. Returns the end of the match;
/// `at` if there is none.
std::size_t cased_word(std::string_view text, std::size_t at, Classes classes) {
  const Seen seen = look(text, at, classes);
  const bool may_lead = !is_newline(text[at]) && (seen.classes & (letter | number)) == 0;
  for (const auto part : {title, capitals}) {
    if (may_lead) {
      if (const std::size_t end = part(text, seen.end, classes); end > seen.end) {
        return end;
      }
    }
    if (const std::size_t end = part(text, at, classes); end > at) {
      return end;
    }
  }
  return at;
}

template <bool contractions, int most_digits>
std::size_t cased(std::string_view text, std::size_t at, Classes classes) {
  if (const std::size_t end = cased_word(text, at, classes); end > at) {
    return contractions ? any_contraction(text, end) : end;
  }
  if (const std::size_t end = numbers(text, at, classes, most_digits); end > at) {
    return end;
  }
  const std::size_t end = others_and_lines(text, at, classes, true);
  return end > at ? end : lines_or_space(text, at, classes);
}

constexpr std::string_view gpt2_expression =
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";
constexpr std::string_view llama3_expression =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view qwen2_expression =
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view tekken_expression =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
constexpr std::string_view o200k_expression =
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";

struct Known {
  std::string_view family;
  std::string_view expression;
  Scanner scanner;
};

constexpr Known known_expressions[] = {{"gpt2", gpt2_expression, gpt2},
                                       {"llama3", llama3_expression, cl100k<3>},
                                       {"qwen2", qwen2_expression, cl100k<1>},
                                       {"tekken", tekken_expression, cased<false, 1>},
                                       {"o200k", o200k_expression, cased<true, 3>}};

}  // namespace

std::optional<Scanner> scanner_of(std::string_view expression) noexcept {
  const auto* const found = std::ranges::find(known_expressions, expression, &Known::expression);
  return found == std::end(known_expressions) ? std::nullopt : std::optional(found->scanner);
}

std::optional<std::string_view> expression_of(std::string_view family) noexcept {
  const auto* const found = std::ranges::find(known_expressions, family, &Known::family);
  return found == std::end(known_expressions) ? std::nullopt : std::optional(found->expression);
}

}  // namespace shardrun::text
