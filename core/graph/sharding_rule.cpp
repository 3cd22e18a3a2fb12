#include "core/graph/sharding_rule.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "core/base/error.h"

namespace shardrun::graph {
namespace {

std::vector<std::string_view> split_on(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  std::size_t begin = 0;
  while (begin <= text.size()) {
    const std::size_t end = std::min(text.find(separator, begin), text.size());
    parts.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

/// Expands a word: "i" → {"i"}; "a*2" → {"a0", "a1"}; "." → {}.
std::vector<std::string> expand(std::string_view word) {
  if (word.empty() || word == ".") {
    return {};
  }
  const std::size_t star = word.find('*');
  if (star == std::string_view::npos) {
    return {std::string(word)};
  }
  std::size_t count = 0;
  std::from_chars(word.data() + star + 1, word.data() + word.size(), count);
  std::vector<std::string> names;
  for (std::size_t k = 0; k < count; ++k) {
    names.push_back(fmt::format("{}{}", word.substr(0, star), k));
  }
  return names;
}

std::vector<std::vector<FactorId>> parse_operands(std::string_view text, ShardingRule& rule) {
  std::vector<std::vector<FactorId>> operands;
  if (text.find_first_not_of(' ') == std::string_view::npos) {
    return operands;
  }
  for (const std::string_view operand : split_on(text, ',')) {
    std::vector<FactorId>& dimensions = operands.emplace_back();
    for (const std::string_view word : split_on(operand, ' ')) {
      for (const std::string& name : expand(word)) {
        const FactorId known = rule.find(name);
        dimensions.push_back(known.exists() ? known : rule.factors.push_back({.name = name}));
      }
    }
  }
  return operands;
}

void classify(ShardingRule& rule, std::string_view names, FactorClass kind, bool is_picked = false) {
  for (const std::string_view word : split_on(names, ' ')) {
    for (const std::string& name : expand(word)) {
      const FactorId factor = rule.find(name);
      if (!factor.exists()) {
        throw Error(ErrorCode::internal, fmt::format("no factor '{}' in the rule {}", name, to_string(rule)));
      }
      rule.factors[factor].kind = kind;
      rule.factors[factor].is_picked = is_picked;
    }
  }
}

std::string operand_list(const std::vector<TensorType>& operands) {
  std::string text;
  for (const TensorType& type : operands) {
    text += (text.empty() ? "" : ", ") + to_string(type);
  }
  return text;
}

/// A dimension as text: "x", "x[-1..1]", "2x[0..1]", "x/2[-1..0]".
std::string dimension_text(const std::string& factor, const Window* window) {
  if (window == nullptr) {
    return factor;
  }
  return fmt::format("{}{}{}[{}..{}]", window->stride == 1 ? "" : std::to_string(window->stride), factor,
                     window->divisor == 1 ? "" : fmt::format("/{}", window->divisor), window->first, window->last);
}

std::string dimensions_text(const ShardingRule& rule, const std::vector<std::vector<FactorId>>& tensors,
                            bool are_operands) {
  std::string text;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    text += i == 0 ? "" : ", ";
    text += tensors[i].empty() ? "." : "";
    for (std::size_t d = 0; d < tensors[i].size(); ++d) {
      text += d == 0 ? "" : " ";
      text +=
          dimension_text(rule.factors[tensors[i][d]].name, are_operands ? rule.window(i, d) : rule.result_window(i, d));
    }
  }
  return text;
}

}  // namespace

FactorId ShardingRule::find(std::string_view factor) const noexcept {
  for (const FactorId id : factors.ids()) {
    if (factors[id].name == factor) {
      return id;
    }
  }
  return {};
}

namespace {

const Window* find_window(const std::vector<WindowedDimension>& windows, std::size_t tensor, std::size_t dim) noexcept {
  const auto found = std::ranges::find_if(
      windows, [&](const WindowedDimension& each) { return each.operand == tensor && each.dim == dim; });
  return found == windows.end() ? nullptr : &found->window;
}

}  // namespace

const Window* ShardingRule::window(std::size_t operand, std::size_t dim) const noexcept {
  return find_window(windows, operand, dim);
}

const Window* ShardingRule::result_window(std::size_t result, std::size_t dim) const noexcept {
  return find_window(result_windows, result, dim);
}

bool ShardingRule::is_windowed(FactorId factor) const noexcept {
  return std::ranges::any_of(windows,
                             [&](const WindowedDimension& each) { return inputs[each.operand][each.dim] == factor; });
}

ShardingRule parse_rule(std::string_view text) {
  ShardingRule rule;
  const std::size_t arrow = text.find("->");
  if (arrow == std::string_view::npos) {
    throw Error(ErrorCode::internal, fmt::format("no '->' in the sharding rule '{}'", text));
  }
  rule.inputs = parse_operands(text.substr(0, arrow), rule);
  rule.outputs = parse_operands(text.substr(arrow + 2), rule);
  return rule;
}

ShardingRule parse_rule(std::string_view text, const FactorClasses& classes) {
  ShardingRule rule = parse_rule(text);
  classify(rule, classes.reduced, FactorClass::reduced);
  classify(rule, classes.whole, FactorClass::whole);
  classify(rule, classes.picked, FactorClass::reduced, true);
  return rule;
}

std::vector<TensorType> infer_types(ShardingRule& rule, const std::vector<TensorType>& operands,
                                    const std::string& what) {
  if (operands.size() != rule.inputs.size()) {
    throw Error(ErrorCode::shape_mismatch,
                fmt::format("{}: expected {} operands ({}), found {} ({})", what, rule.inputs.size(), to_string(rule),
                            operands.size(), operand_list(operands)));
  }
  for (std::size_t i = 0; i < operands.size(); ++i) {
    if (operands[i].shape.size() != rule.inputs[i].size()) {
      throw Error(ErrorCode::shape_mismatch,
                  fmt::format("{}: operand {} should have {} dimensions ({}), found {}", what, i, rule.inputs[i].size(),
                              to_string(rule), to_string(operands[i])));
    }
    for (std::size_t d = 0; d < operands[i].shape.size(); ++d) {
      Factor& factor = rule.factors[rule.inputs[i][d]];
      if (rule.window(i, d) != nullptr) {
        continue;
      }
      if (factor.size == 0) {
        factor.size = operands[i].shape[d];
        factor.axis = operands[i].axes[d];
      } else if (factor.size != operands[i].shape[d]) {
        throw Error(
            ErrorCode::shape_mismatch,
            fmt::format("{}: factor '{}' is {} in an earlier operand and {} in operand {} (operands {}; rule {})", what,
                        factor.name, factor.size, operands[i].shape[d], i, operand_list(operands), to_string(rule)));
      }
    }
  }
  const auto real = std::ranges::find_if(operands, [](const TensorType& type) { return is_real(type.dtype); });
  const DType dtype = real == operands.end() ? DType::f32 : real->dtype;
  std::vector<TensorType> results(rule.outputs.size(), TensorType{.dtype = dtype, .shape = {}, .axes = {}});
  for (std::size_t o = 0; o < results.size(); ++o) {
    if (o < rule.dtypes.size()) {
      results[o].dtype = rule.dtypes[o].value_or(dtype);
    }
    for (std::size_t d = 0; d < rule.outputs[o].size(); ++d) {
      const FactorId f = rule.outputs[o][d];
      if (const Window* window = rule.result_window(o, d)) {
        const auto same = std::ranges::find_if(rule.windows, [&](const WindowedDimension& each) {
          return rule.inputs[each.operand][each.dim] == f && each.window == *window;
        });
        results[o].shape.push_back(operands[same->operand].shape[same->dim]);
        results[o].axes.push_back(operands[same->operand].axes[same->dim]);
        continue;
      }
      const Factor& factor = rule.factors[f];
      if (factor.size <= 0) {
        throw Error(ErrorCode::shape_mismatch, fmt::format("{}: factor '{}' of a result has no size (rule {})", what,
                                                           factor.name, to_string(rule)));
      }
      results[o].shape.push_back(factor.size);
      results[o].axes.push_back(factor.axis);
    }
  }
  return results;
}

std::string to_string(const ShardingRule& rule) {
  std::string text = dimensions_text(rule, rule.inputs, true) + " -> " + dimensions_text(rule, rule.outputs, false);
  const auto list = [&](const char* label, const auto& belongs) {
    std::string names;
    for (const FactorId f : rule.factors.ids()) {
      const Factor& factor = rule.factors[f];
      if (belongs(f)) {
        const bool shown = factor.kind == FactorClass::reduced && factor.reduction != Reduction::sum;
        names += " " + factor.name + (shown ? fmt::format(" ({})", to_string(factor.reduction)) : "");
      }
    }
    text += names.empty() ? "" : fmt::format("; {}{}", label, names);
  };
  list("reduced", [&](FactorId f) { return rule.factors[f].kind == FactorClass::reduced; });
  list("whole", [&](FactorId f) { return rule.factors[f].kind == FactorClass::whole; });
  list("periodic", [&](FactorId f) {
    return std::ranges::any_of(rule.windows, [&](const WindowedDimension& each) {
      return each.window.wraps && rule.inputs[each.operand][each.dim] == f;
    });
  });
  return text;
}

}  // namespace shardrun::graph
