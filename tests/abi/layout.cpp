#include "tests/abi/layout.h"

#include <fmt/format.h>
#include <shardrun/engine.h>
#include <shardrun/model.h>
#include <shardrun/strategy.h>
#include <shardrun/transport.h>

#include <array>
#include <regex>
#include <sstream>
#include <string_view>
#include <utility>

namespace shardrun::test {
namespace {

/// The type as it is declared, spelt the same by every compiler.
template <class T>
std::string type_text() {
  std::string text = __PRETTY_FUNCTION__;  // "… [with T = const char*; …]" or "… [T = const char *]"
  text = std::regex_replace(text, std::regex(R"(^.*\bT = ([^;]*?)(;.*)?\]$)"), "$1");
  const std::array<std::pair<const char*, const char*>, 8> spellings = {{{R"(\blong unsigned int\b)", "u64"},
                                                                         {R"(\bunsigned long\b)", "u64"},
                                                                         {R"(\blong int\b)", "i64"},
                                                                         {R"(\blong\b)", "i64"},
                                                                         {R"(\bunsigned int\b)", "u32"},
                                                                         {R"(\bint\b)", "i32"},
                                                                         {R"(\s*([*(),\[])\s*)", "$1"},
                                                                         {R"(\*const)", "* const"}}};
  for (const auto& [pattern, replacement] : spellings) {
    text = std::regex_replace(text, std::regex(pattern), replacement);
  }
  return text;
}

}  // namespace

AbiLayout compiled_layout() {
  AbiLayout layout;
#define SR_STRUCT(type) layout.structs[#type] = {};
#define SR_FIELD(type, field)      \
  layout.structs[#type].push_back( \
      {#field, offsetof(type, field), sizeof(type::field), type_text<decltype(type::field)>()});
#define SR_CONSTANT(name) layout.constants[#name] = fmt::format("{}", name);
#include "tests/abi/fields.inc"
#undef SR_STRUCT
#undef SR_FIELD
#undef SR_CONSTANT
  return layout;
}

std::string to_string(const AbiLayout& layout) {
  std::string text;
  for (const auto& [name, value] : layout.constants) {
    text += fmt::format("constant {} {}\n", name, value);
  }
  for (const auto& [name, fields] : layout.structs) {
    for (const FieldLayout& field : fields) {
      text += fmt::format("field {} {} {} {} {}\n", name, field.name, field.offset, field.size, field.type);
    }
  }
  return text;
}

AbiLayout parse_layout(const std::string& text) {
  AbiLayout layout;
  std::istringstream lines(text);
  std::string what;
  std::string name;
  while (lines >> what >> name) {
    if (what == "constant") {
      lines >> layout.constants[name];
      continue;
    }
    FieldLayout field;
    lines >> field.name >> field.offset >> field.size >> std::ws;
    std::getline(lines, field.type);
    layout.structs[name].push_back(field);
  }
  return layout;
}

}  // namespace shardrun::test
