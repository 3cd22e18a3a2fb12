#include "core/graph/rule_words.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <optional>

#include "core/base/error.h"

namespace shardrun::graph {
namespace {

constexpr const char* form =
    "expected such as 'b t k, k n -> b t n; reduced k', 'b* d, d -> b* d; whole d' or 'b x[-1..1] -> b x'";

Words words_of(std::string_view text) {
  Words words;
  for (std::size_t begin = 0; (begin = text.find_first_not_of(' ', begin)) != std::string_view::npos;) {
    const std::size_t end = std::min(text.find(' ', begin), text.size());
    words.emplace_back(text.substr(begin, end - begin));
    begin = end;
  }
  return words;
}

std::vector<std::string_view> parts_of(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(separator, begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

bool is_name(std::string_view word) {
  const auto is_letter = [](char c) { return (c >= 'a' && c <= 'z') || c == '_'; };
  const auto is_digit = [](char c) { return c >= '0' && c <= '9'; };
  return !word.empty() && is_letter(word.front()) &&
         std::ranges::all_of(word, [&](char c) { return is_letter(c) || is_digit(c); });
}

/// Takes a number from the beginning of the text.
std::optional<std::int64_t> take_number(std::string_view& text) {
  std::int64_t number = 0;
  const auto [rest, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (problem != std::errc()) {
    return std::nullopt;
  }
  text.remove_prefix(static_cast<std::size_t>(rest - text.data()));
  return number;
}

bool take(std::string_view& text, std::string_view expected) {
  const bool begins = text.starts_with(expected);
  text.remove_prefix(begins ? expected.size() : 0);
  return begins;
}

/// Leaves the factor's name of "x[-1..1]", "2x[0..1]" or "x/2[-1..0]". Nothing for other words.
std::optional<Window> take_window(std::string& word) {
  constexpr std::int64_t most = 1 << 20;
  std::string_view rest = word;
  const std::int64_t stride = take_number(rest).value_or(1);
  const std::string name(rest.substr(0, rest.find_first_of("/[")));
  rest.remove_prefix(name.size());
  const std::int64_t divisor = take(rest, "/") ? take_number(rest).value_or(0) : 1;
  const bool opens = take(rest, "[");
  const std::optional<std::int64_t> first = take_number(rest);
  const bool goes_on = take(rest, "..");
  const std::optional<std::int64_t> last = take_number(rest);
  const auto is_size = [](std::int64_t value) { return value >= 1 && value <= most; };
  if (!opens || !goes_on || rest != "]" || !is_name(name) || !is_size(stride) || !is_size(divisor) || !first || !last ||
      *first > *last || *first < -most || *last > most) {
    return std::nullopt;
  }
  word = name;
  return Window{.stride = stride, .divisor = divisor, .first = *first, .last = *last};
}

/// `windows`: null in results, which have none.
std::vector<Words> tensors_of(std::string_view text, std::string_view rule, std::vector<WrittenWindow>* windows) {
  std::vector<Words> tensors;
  for (const std::string_view part : parts_of(text, ',')) {
    Words words = words_of(part);
    if (words == Words{"."}) {
      words.clear();
    } else if (words.empty()) {
      refuse_rule(rule, fmt::format("has an empty operand or result: a scalar is '.'; {}", form));
    }
    for (std::string& word : words) {
      if (const std::optional<Window> window = windows != nullptr ? take_window(word) : std::nullopt) {
        windows->push_back({tensors.size(), word, *window});
      }
      if (!is_name(word) && !is_group(word)) {
        refuse_rule(rule, fmt::format("has '{}', which is no factor; {}", word, form));
      }
      if (std::ranges::count(words, word) > 1) {
        refuse_rule(rule, fmt::format("has '{}' twice in one operand or result", word));
      }
    }
    tensors.push_back(std::move(words));
  }
  return tensors;
}

}  // namespace

WrittenRule read_rule(std::string_view text) {
  const std::size_t arrow = text.find("->");
  if (arrow == std::string_view::npos) {
    refuse_rule(text, fmt::format("has no '->'; {}", form));
  }
  const std::vector<std::string_view> clauses = parts_of(text.substr(arrow + 2), ';');
  WrittenRule written;
  written.operands = tensors_of(text.substr(0, arrow), text, &written.windows);
  written.results = tensors_of(clauses.front(), text, nullptr);
  for (std::size_t c = 1; c < clauses.size(); ++c) {
    Words words = words_of(clauses[c]);
    if (words.size() < 2 || (words.front() != "reduced" && words.front() != "whole")) {
      refuse_rule(text, fmt::format("has the class '{}', expected 'reduced' or 'whole' and factors", clauses[c]));
    }
    written.classes.push_back(std::move(words));
  }
  return written;
}

bool is_group(std::string_view word) { return word.ends_with('*') && is_name(word.substr(0, word.size() - 1)); }

void refuse_rule(std::string_view text, const std::string& why) {
  throw Error(ErrorCode::shape_mismatch, fmt::format("the rule '{}' {}", text, why));
}

}  // namespace shardrun::graph
