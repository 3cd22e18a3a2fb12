#include "core/graph/rule_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <map>
#include <numeric>
#include <optional>

#include "core/base/error.h"
#include "core/base/window.h"

namespace shardrun::graph {
namespace {

// Splits a rule's text (rule_text.h) into words, and gives these a meaning.

using Words = std::vector<std::string>;

/// A dimension of an operand that the text writes as a window of its factor.
struct WrittenWindow {
  std::size_t operand;
  std::string factor;
  Window window;
};

/// The words of a rule. A word with a window is stored as its factor's name only.
struct WrittenRule {
  std::vector<Words> operands;
  std::vector<WrittenWindow> windows;
  std::vector<Words> results;
  std::vector<Words> classes;  ///< each list begins with the name of a class
};

constexpr const char* form =
    "expected such as 'b t k, k n -> b t n; reduced k', 'b* d, d -> b* d; whole d' or 'b x[-1..1] -> b x'";

/// Throws Error{shape_mismatch} with the text "the rule 'TEXT' WHY".
[[noreturn]] void refuse_rule(std::string_view text, const std::string& why) {
  throw Error(ErrorCode::shape_mismatch, fmt::format("the rule '{}' {}", text, why));
}

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

/// Whether a word stands for any number of dimensions: "b*".
bool is_group(std::string_view word) { return word.ends_with('*') && is_name(word.substr(0, word.size() - 1)); }

/// Removes a number from the beginning of the text and returns it; nothing if there is none.
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

/// Removes the window from "x[-1..1]", "2x[0..1]" or "x/2[-1..0]", so that `word` becomes "x", and returns it. Nothing
/// for other words.
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

/// The words of each tensor. `windows`: receives the windows; null for results, which have none.
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

/// Reads a rule into words. Throws Error{shape_mismatch} for malformed text.
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

using Groups = std::map<std::string, std::size_t>;  ///< by name: how many dimensions "b*" stands for

Groups sizes_of_groups(const WrittenRule& written, const std::vector<TensorType>& operands, std::string_view text) {
  Groups sizes;
  for (std::size_t i = 0; i < std::min(written.operands.size(), operands.size()); ++i) {
    const Words& words = written.operands[i];
    std::size_t known = 0;
    std::optional<std::string> open;
    for (const std::string& word : words) {
      const auto group = sizes.find(word);
      if (is_group(word) && group == sizes.end()) {
        if (open) {
          refuse_rule(text, fmt::format("does not say how many dimensions '{}' and '{}' have", *open, word));
        }
        open = word;
      } else {
        known += is_group(word) ? group->second : 1;
      }
    }
    if (open && operands[i].shape.size() < known) {
      refuse_rule(text, fmt::format("does not fit operand {}, {}", i, to_string(operands[i])));
    }
    if (open) {
      sizes.emplace(*open, operands[i].shape.size() - known);
    }
  }
  return sizes;
}

/// The names of the factors that a word stands for: of a group, one per dimension.
Words expanded(const std::string& word, const Groups& groups, std::string_view text) {
  if (!is_group(word)) {
    return {word};
  }
  const auto group = groups.find(word);
  if (group == groups.end()) {
    refuse_rule(text, fmt::format("has '{}' where no operand says how many dimensions it is", word));
  }
  Words names;
  for (std::size_t k = 0; k < group->second; ++k) {
    names.push_back(fmt::format("{}{}", word.substr(0, word.size() - 1), k));
  }
  return names;
}

/// The factors of each tensor. `adds`: whether unknown factors are added to the rule; otherwise they are refused.
std::vector<std::vector<FactorId>> factors_of(const std::vector<Words>& tensors, ShardingRule& rule,
                                              const Groups& groups, bool adds, std::string_view text) {
  std::vector<std::vector<FactorId>> made;
  for (const Words& words : tensors) {
    std::vector<FactorId>& dims = made.emplace_back();
    for (const std::string& word : words) {
      for (const std::string& name : expanded(word, groups, text)) {
        const FactorId known = rule.find(name);
        if (!known.exists() && !adds) {
          refuse_rule(text, fmt::format("has the factor '{}' in a result, and in no operand", name));
        }
        dims.push_back(known.exists() ? known : rule.factors.push_back({.name = name}));
      }
    }
  }
  return made;
}

Reduction reduction_from(const std::string& word, std::string_view text) {
  for (const Reduction each : {Reduction::sum, Reduction::max, Reduction::min}) {
    if (word == fmt::format("({})", to_string(each))) {
      return each;
    }
  }
  refuse_rule(text, fmt::format("reduces by '{}', expected (sum), (max) or (min)", word));
}

/// Gives factors the class that `words` begins with. Skips factors that only missing operands have.
void classify(ShardingRule& rule, const Words& words, const WrittenRule& written, const Groups& groups,
              std::string_view text) {
  const FactorClass kind = words.front() == "whole" ? FactorClass::whole : FactorClass::reduced;
  std::vector<FactorId> last;
  for (std::size_t w = 1; w < words.size(); ++w) {
    if (words[w].starts_with('(') && kind == FactorClass::reduced && w > 1) {
      for (const FactorId factor : last) {
        rule.factors[factor].reduction = reduction_from(words[w], text);
      }
      continue;
    }
    const bool is_written = std::ranges::any_of(
        written.operands, [&](const Words& operand) { return std::ranges::find(operand, words[w]) != operand.end(); });
    if (!is_written) {
      refuse_rule(text, fmt::format("calls '{}' {}, which is in no operand", words[w], words.front()));
    }
    last.clear();
    for (const std::string& name :
         is_group(words[w]) && !groups.contains(words[w]) ? Words() : expanded(words[w], groups, text)) {
      if (const FactorId factor = rule.find(name); factor.exists()) {
        rule.factors[factor].kind = kind;
        last.push_back(factor);
      }
    }
  }
}

/// Whether an operand has the factor as a dimension, without a window.
bool is_dimension(const ShardingRule& rule, FactorId factor) {
  for (std::size_t i = 0; i < rule.inputs.size(); ++i) {
    for (std::size_t d = 0; d < rule.inputs[i].size(); ++d) {
      if (rule.inputs[i][d] == factor && rule.window(i, d) == nullptr) {
        return true;
      }
    }
  }
  return false;
}

/// Adds the windows of the operands that are present. A factor that is only read through windows gets its size from the
/// first one.
void add_windows(ShardingRule& rule, const std::vector<WrittenWindow>& windows, const std::vector<TensorType>& operands,
                 std::string_view text) {
  for (const auto& [i, name, window] : windows) {
    if (i >= rule.inputs.size()) {
      continue;
    }
    const FactorId factor = rule.find(name);
    if (rule.factors[factor].kind != FactorClass::pass_through) {
      refuse_rule(text, fmt::format("has a window of the factor '{}', which is reduced or whole", name));
    }
    const auto dim = static_cast<std::size_t>(std::ranges::find(rule.inputs[i], factor) - rule.inputs[i].begin());
    if (dim >= operands[i].shape.size()) {
      refuse_rule(text, fmt::format("does not fit operand {}, {}", i, to_string(operands[i])));
    }
    rule.windows.push_back({i, dim, window});
  }
  for (const auto& [i, dim, window] : rule.windows) {
    Factor& factor = rule.factors[rule.inputs[i][dim]];
    if (factor.size == 0 && !is_dimension(rule, rule.inputs[i][dim])) {
      factor.size = windowed_size(window, operands[i].shape[dim]);
      factor.axis = operands[i].axes[dim];
    }
  }
}

void check_results(const ShardingRule& rule, std::string_view text) {
  for (const FactorId id : rule.factors.ids()) {
    const Factor& factor = rule.factors[id];
    const auto has = [&](const std::vector<FactorId>& dims) { return std::ranges::find(dims, id) != dims.end(); };
    if (factor.kind == FactorClass::reduced && std::ranges::any_of(rule.outputs, has)) {
      refuse_rule(text, fmt::format("reduces the factor '{}', which a result has", factor.name));
    }
    if (factor.kind == FactorClass::pass_through && !std::ranges::all_of(rule.outputs, has)) {
      refuse_rule(text, fmt::format("has the factor '{}', which is not in every result: call it reduced where split "
                                    "operands give partial results, or whole",
                                    factor.name));
    }
  }
}

}  // namespace

ShardingRule rule_from_text(std::string_view text, const std::vector<TensorType>& operands) {
  const WrittenRule written = read_rule(text);
  const Groups groups = sizes_of_groups(written, operands, text);
  std::vector<Words> given = written.operands;
  given.resize(std::min(given.size(), operands.size()));
  ShardingRule rule;
  rule.inputs = factors_of(given, rule, groups, true, text);
  rule.outputs = factors_of(written.results, rule, groups, false, text);
  for (const Words& words : written.classes) {
    classify(rule, words, written, groups, text);
  }
  add_windows(rule, written.windows, operands, text);
  check_results(rule, text);
  return rule;
}

std::int64_t windowed_size(const Window& window, std::int64_t dimension) noexcept {
  return (dimension * window.divisor + window.stride - 1) / window.stride;
}

std::vector<TensorType> typical_operands(std::string_view text,
                                         const std::function<std::int64_t(const std::string& factor)>& size) {
  const WrittenRule written = read_rule(text);
  Groups groups;
  for (const Words& words : written.operands) {
    for (const std::string& word : words) {
      if (is_group(word)) {
        groups[word] = 2;
      }
    }
  }
  const auto size_of_windows = [&](const std::string& name) {
    std::int64_t multiple = 1;
    for (const auto& [i, factor, window] : written.windows) {
      multiple = factor == name ? std::lcm(multiple, window.divisor) : multiple;
    }
    return (size(name) + multiple - 1) / multiple * multiple;
  };
  std::vector<TensorType> operands;
  for (const Words& words : written.operands) {
    TensorType& type = operands.emplace_back();
    for (const std::string& word : words) {
      for (const std::string& name : expanded(word, groups, text)) {
        type.shape.push_back(size_of_windows(name));
        type.axes.push_back(name);
      }
    }
  }
  for (const auto& [i, name, window] : written.windows) {
    const auto dim = std::ranges::find(operands[i].axes, name) - operands[i].axes.begin();
    std::int64_t& indices = operands[i].shape[static_cast<std::size_t>(dim)];
    indices = (indices - 1) * window.stride / window.divisor + 1;
  }
  return operands;
}

}  // namespace shardrun::graph
