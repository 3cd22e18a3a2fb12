#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace shardrun::templates {

/// A place in a template, from 1. Columns are bytes.
struct Position {
  std::uint32_t line = 1;
  std::uint32_t column = 1;
};

/// Throws Error{data}: "line 3, column 7: MESSAGE".
[[noreturn]] void fail_at(Position at, const std::string& message);

enum class TokenKind : std::uint8_t {
  data,
  variable_begin,
  variable_end,
  block_begin,
  block_end,
  name,
  text,
  integer,
  real,
  symbol,
  end,
};

struct Token {
  TokenKind kind = TokenKind::end;
  std::string text;  ///< of data, names, texts and symbols
  Position at = {};
  std::int64_t integer = 0;
  double real = 0;

  [[nodiscard]] bool is(std::string_view symbol) const { return kind == TokenKind::symbol && text == symbol; }
  [[nodiscard]] bool is_name(std::string_view name) const { return kind == TokenKind::name && text == name; }
};

/// The tokens of a template, and the end. White space around blocks is gone.
[[nodiscard]] std::vector<Token> tokens_of(std::string_view source);

enum class NodeKind : std::uint8_t {
  // Expressions: what `parts` are.
  none,
  boolean,    ///< `flag`
  integer,    ///< `number`
  real,       ///< `real`
  text,       ///< `name`
  variable,   ///< `name`
  member,     ///< as a target: attribute `names[0]` of the variable `name`
  tuple,      ///< elements
  list,       ///< elements
  dict,       ///< keys and values in turn
  attribute,  ///< object; `name`
  item,       ///< object, key
  slice,      ///< from, to, step; each may be null
  call,       ///< function; `arguments`
  filter,     ///< value, null in a block's; `name`, `arguments`
  test,       ///< value; `name`, `arguments`
  negation,   ///< operand of `not`
  unary,      ///< operand; `name`
  binary,     ///< operands; `name`
  concat,     ///< operands of ~
  compare,    ///< operands; `names` of the operators between them
  both,       ///< operands of `and`
  either,     ///< operands of `or`
  choice,     ///< condition, value, other value or null
  // Statements.
  data,          ///< `name`
  output,        ///< expressions
  condition,     ///< `body`: branches
  branch,        ///< condition, null for else; `body`
  loop,          ///< target, iterable, condition or null; `body`, `otherwise`; `flag`: recursive
  assign,        ///< target, value
  assign_block,  ///< target, filter or null; `body`
  macro,         ///< `name`, `names` of parameters, defaults of the last ones; `body`; `number`: MacroUse
  call_block,    ///< call, macro
  filter_block,  ///< filter; `body`
  with,          ///< targets and values in turn; `body`
  scope,         ///< `body`
  stop,          ///< `flag`: break, else continue
};

/// What a macro's body names beside its parameters.
enum MacroUse : std::int64_t { uses_varargs = 1, uses_kwargs = 2, uses_caller = 4 };

enum class ArgumentKind : std::uint8_t { positional, named, all_positional, all_named };

struct Node;
using NodePointer = std::unique_ptr<Node>;

struct Argument {
  NodePointer value;
  std::string name;
  ArgumentKind kind = ArgumentKind::positional;
};

/// A node of a template's tree. No tree is deeper than max_tree_depth.
struct Node {
  NodeKind kind = NodeKind::none;
  Position at = {};
  std::int64_t depth = 1;
  bool flag = false;
  std::int64_t number = 0;
  double real = 0;
  std::string name;
  std::vector<std::string> names;
  std::vector<NodePointer> parts;
  std::vector<Argument> arguments;
  std::vector<NodePointer> body;
  std::vector<NodePointer> otherwise;
};

inline constexpr std::int64_t max_tree_depth = 250;

/// The tree of a template: a node of kind scope.
[[nodiscard]] NodePointer parse_tree(std::string_view source);

}  // namespace shardrun::templates
