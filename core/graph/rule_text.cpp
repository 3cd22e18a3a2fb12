#include "core/graph/rule_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <optional>

#include "core/graph/rule_words.h"

namespace shardrun::graph {
namespace {

using Groups = std::map<std::string, std::size_t>;  ///< how many dimensions "b*" stands for

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

/// The names of the factors that a word stands for.
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

/// The factors of each tensor. `adds`: those that are not known yet, otherwise they are refused.
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

/// Factors of operands that are left out are passed over.
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

/// Whether an operand has the factor, and not a window of it.
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

/// Adds the windows of the operands that are given. A factor that no operand has itself gets its size from the first.
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
