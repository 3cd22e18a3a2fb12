#include "core/text/unicode.h"

#include <algorithm>
#include <iterator>
#include <unordered_map>
#include <utility>
#include <vector>

#include "core/base/utf8.h"

namespace shardrun::text {
namespace {

#include "core/text/unicode_tables.inc"

constexpr char32_t code_points = 0x110000;

// Hangul syllables are composed by a formula instead of a table: Unicode, section 3.12.
constexpr char32_t syllables = 0xAC00;
constexpr char32_t leads = 0x1100;
constexpr char32_t vowels = 0x1161;
constexpr char32_t trails = 0x11A7;
constexpr char32_t lead_count = 19;
constexpr char32_t vowel_count = 21;
constexpr char32_t trail_count = 28;
constexpr char32_t syllable_count = lead_count * vowel_count * trail_count;

/// Characters below this one are not marks. Normalization Form C changes them only if a character from here on follows.
constexpr char32_t first_mark = 0x300;

/// Expands runs to a table with one value per code point. `runs` has the first code point and the value of each run.
template <std::size_t count>
std::vector<std::uint8_t> expanded(const std::uint32_t (&runs)[count]) {
  std::vector<std::uint8_t> values(code_points);
  for (std::size_t i = 0; i < count; i += 2) {
    const std::uint32_t end = i + 2 < count ? runs[i + 2] : code_points;
    std::fill(values.begin() + runs[i], values.begin() + end, static_cast<std::uint8_t>(runs[i + 1]));
  }
  return values;
}

/// The tables of normalization.
struct Forms {
  std::vector<std::uint8_t> combining = expanded(combining_runs);
  std::unordered_map<char32_t, std::pair<char32_t, char32_t>> parts;
  std::unordered_map<std::uint64_t, char32_t> wholes;  ///< the composed character, by first << 32 | second

  Forms() {
    for (std::size_t i = 0; i < std::size(decompositions); i += 3) {
      const std::uint32_t whole = decompositions[i];
      const std::uint32_t first = decompositions[i + 1];
      const std::uint32_t second = decompositions[i + 2];
      parts[whole] = {first, second};
      if (second != 0 && !std::ranges::binary_search(not_composed, whole)) {
        wholes[std::uint64_t{first} << 32U | second] = whole;
      }
    }
  }

  static const Forms& get() {
    static const Forms forms;
    return forms;
  }

  void decompose(char32_t whole, std::u32string& to) const {
    if (whole >= syllables && whole < syllables + syllable_count) {
      const char32_t index = whole - syllables;
      to += leads + index / (vowel_count * trail_count);
      to += vowels + index % (vowel_count * trail_count) / trail_count;
      if (index % trail_count != 0) {
        to += trails + index % trail_count;
      }
      return;
    }
    const auto found = parts.find(whole);
    if (found == parts.end()) {
      to += whole;
      return;
    }
    decompose(found->second.first, to);
    if (found->second.second != 0) {
      decompose(found->second.second, to);
    }
  }

  /// The character that is composed of two; 0 if there is none.
  [[nodiscard]] char32_t composed(char32_t first, char32_t second) const {
    if (first >= leads && first < leads + lead_count && second >= vowels && second < vowels + vowel_count) {
      return syllables + ((first - leads) * vowel_count + (second - vowels)) * trail_count;
    }
    if (first >= syllables && first < syllables + syllable_count && (first - syllables) % trail_count == 0 &&
        second > trails && second < trails + trail_count) {
      return first + (second - trails);
    }
    const auto found = wholes.find(std::uint64_t{first} << 32U | second);
    return found == wholes.end() ? 0 : found->second;
  }
};

/// Sorts each run of marks by combining class. Marks of equal class keep their order.
void order_marks(std::u32string& text, const std::vector<std::uint8_t>& combining) {
  for (auto at = text.begin(); at != text.end();) {
    if (combining[*at] == 0) {
      ++at;
      continue;
    }
    const auto end = std::find_if(at, text.end(), [&](char32_t c) { return combining[c] == 0; });
    std::stable_sort(at, end, [&](char32_t a, char32_t b) { return combining[a] < combining[b]; });
    at = end;
  }
}

/// Composes marks with starters. A mark is composed with the last starter, unless a character between them has its
/// class or a higher one.
void compose(std::u32string& text, const Forms& forms) {
  std::size_t kept = 0;
  std::size_t starter = std::u32string::npos;
  int last_class = -1;
  for (const char32_t character : text) {
    const int combining = forms.combining[character];
    if (starter != std::u32string::npos && (last_class < combining || last_class == -1)) {
      if (const char32_t whole = forms.composed(text[starter], character); whole != 0) {
        text[starter] = whole;
        continue;
      }
    }
    if (combining == 0) {
      starter = kept;
      last_class = -1;
    } else {
      last_class = combining;
    }
    text[kept++] = character;
  }
  text.resize(kept);
}

}  // namespace

const std::uint8_t* character_classes() {
  static const std::vector<std::uint8_t> classes = expanded(class_runs);
  return classes.data();
}

void append_nfc(std::string_view text, std::string& to) {
  std::u32string part;
  for (std::size_t at = 0; at < text.size();) {
    // Copies characters below first_mark unchanged, except the last one if a mark can follow it.
    std::size_t end = at;
    std::size_t last = at;
    while (end < text.size() && static_cast<unsigned char>(text[end]) < 0xCC) {  // first_mark is 0xCC 0x80 in UTF-8
      last = end;
      end += static_cast<unsigned char>(text[end]) < 0x80 ? 1 : 2;
    }
    if (end == text.size()) {
      to += text.substr(at);
      return;
    }
    to += text.substr(at, last - at);
    const Forms& forms = Forms::get();
    part.clear();
    for (at = last; at < text.size();) {
      const Character next = character_at(text, at);
      if (next.code_point < first_mark && at >= end) {
        break;
      }
      forms.decompose(next.code_point, part);
      at += next.bytes;
    }
    order_marks(part, forms.combining);
    compose(part, forms);
    for (const char32_t character : part) {
      append_utf8(to, character);
    }
  }
}

}  // namespace shardrun::text
