#include "core/graph/op_reference.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <vector>

#include "core/graph/op.h"

namespace shardrun::graph {
namespace {

constexpr const char* introduction =
    "Each op has its result, its attributes, the types of one use, and the sharding rule of that use. `real` stands "
    "for\n"
    "f32 or bf16; a result that is f32 is so whatever the operands are. A rule names the factors of operands and "
    "results:\n"
    "one that is reduced gives partial results when it is split, a whole one is not split, and the others stay split.\n"
    "An operand has `2x[-1..1]` where index x of the results reads its indices 2x - 1 to 2x + 1.\n";

std::string name_of_type(const TensorType& type) {
  return fmt::format("{}[{}]", type.dtype == DType::bf16 ? "real" : to_string(type.dtype), fmt::join(type.shape, ", "));
}

std::string names_of_types(const std::vector<TensorType>& types) {
  std::string text;
  for (const TensorType& type : types) {
    text += (text.empty() ? "" : ", ") + name_of_type(type);
  }
  return text.empty() ? "none" : text;
}

struct Entry {
  std::string name;
  std::vector<std::pair<std::string, std::string>> lines;  ///< pairs of a title and its text
};

/// Makes real operands bf16, so that results which are f32 for all types of operands become visible.
Entry entry_of(const Op& op) {
  std::vector<TensorType> operands = op.example.operands;
  for (TensorType& type : operands) {
    type.dtype = is_real(type.dtype) ? DType::bf16 : type.dtype;
    type.axes.resize(type.shape.size());
  }
  ShardingRule rule = op.rule(op.example.attributes, operands);
  const std::vector<TensorType> results = infer_types(rule, operands, op.name);
  Entry entry{op.of_model.empty() ? op.name : op.name.substr(op.of_model.size() + 1), {{"result", op.help}}};
  for (const AttributeSpec& attribute : op.attributes) {
    entry.lines.emplace_back("attribute", describe(attribute));
  }
  if (!op.example.attributes.entries().empty()) {
    entry.lines.emplace_back("example", to_string(op.example.attributes));
  }
  entry.lines.emplace_back("types", names_of_types(operands) + " -> " + names_of_types(results));
  entry.lines.emplace_back("rule", to_string(rule));
  entry.lines.emplace_back("gradient", op.gradient == nullptr ? "none" : "yes");
  return entry;
}

std::vector<Entry> entries(std::string_view model) {
  std::vector<Entry> made;
  for (const Op* op : all_ops(model)) {
    if (!op->help.empty()) {
      made.push_back(entry_of(*op));
    }
  }
  return made;
}

/// The names of ops that models cannot call, in lines that fit a terminal.
std::string inner_ops() {
  constexpr std::size_t width = 100;
  std::string text;
  std::size_t length = 0;
  for (const Op* op : all_ops()) {
    if (op->help.empty()) {
      const bool fits = length + op->name.size() < width;
      text += (text.empty() ? "" : fits ? ", " : ",\n") + op->name;
      length = (fits ? length : 0) + op->name.size() + 2;
    }
  }
  return text;
}

}  // namespace

std::string op_reference(std::string_view model) {
  std::string text = model.empty() ? "ops\n" : fmt::format("ops of the model {}\n", model);
  text += fmt::format("\n{}", introduction);
  for (const Entry& entry : entries(model)) {
    text += fmt::format("\n{}\n", entry.name);
    for (const auto& [what, said] : entry.lines) {
      text += fmt::format("    {:<10}{}\n", what, said);
    }
  }
  return model.empty()
             ? text + fmt::format("\nGradients, updates and int8 weights are made of these too:\n{}\n", inner_ops())
             : text;
}

std::string op_reference_markdown(std::string_view model) {
  std::string text =
      model.empty()
          ? "# Ops\n\nWritten by `shardrun help ops --markdown` from the declarations of the ops; change it there.\n"
          : fmt::format("# Ops of the model {}\n", model);
  text += fmt::format("\n{}", introduction);
  for (const Entry& entry : entries(model)) {
    text += fmt::format("\n## {}\n\n| | |\n|---|---|\n", entry.name);
    for (const auto& [what, said] : entry.lines) {
      const bool prose = what == "result" || what == "attribute" || what == "gradient";
      std::string cell;
      for (const char c : said) {
        cell += c == '|' ? std::string("\\|") : std::string(1, c);
      }
      text += prose ? fmt::format("| {} | {} |\n", what, cell) : fmt::format("| {} | `{}` |\n", what, cell);
    }
  }
  return model.empty()
             ? text + fmt::format("\nGradients, updates and int8 weights are made of these too: {}.\n", inner_ops())
             : text;
}

}  // namespace shardrun::graph
