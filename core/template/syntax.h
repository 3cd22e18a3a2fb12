#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace shardrun::templates {

/// A place in a template. Lines and columns count from 1; columns count bytes.
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
  std::string text;  ///< the text of data, names, texts, numbers and symbols; otherwise empty
  Position at = {};
  std::int64_t integer = 0;
  double real = 0;

  [[nodiscard]] bool is(std::string_view symbol) const { return kind == TokenKind::symbol && text == symbol; }
  [[nodiscard]] bool is_name(std::string_view name) const { return kind == TokenKind::name && text == name; }
};

/// Splits a template into tokens. The last one is of kind `end`. White space that tags strip is left out.
[[nodiscard]] std::vector<Token> tokens_of(std::string_view source);

enum class NodeKind : std::uint8_t {
  // Expressions. The comments name a node's `parts` in their order, then the other members that it uses.
  none,
  boolean,    ///< `flag`
  integer,    ///< `number`
  real,       ///< `real`
  text,       ///< `name`
  variable,   ///< `name`
  member,     ///< as the target of an assignment: attribute `names[0]` of the variable `name`
  tuple,      ///< its elements
  list,       ///< its elements
  dict,       ///< keys and values alternately
  attribute,  ///< object; `name`
  item,       ///< object, key
  slice,      ///< from, to, step; each can be null
  call,       ///< the function; `arguments`
  filter,     ///< the value (null in a filter block); `name`, `arguments`
  test,       ///< the value; `name`, `arguments`
  negation,   ///< operand of `not`
  unary,      ///< operand; `name`: the operator
  binary,     ///< operands; `name`: the operator
  concat,     ///< operands of ~
  compare,    ///< operands; `names`: the operators between them
  both,       ///< operands of `and`
  either,     ///< operands of `or`
  choice,     ///< condition, value, other value (can be null)
  // Statements.
  data,          ///< `name`: the text
  output,        ///< expressions
  condition,     ///< `body`: its branches
  branch,        ///< condition (null for else); `body`
  loop,          ///< target, iterable, condition (can be null); `body`, `otherwise`; `flag`: recursive
  assign,        ///< target, value
  assign_block,  ///< target, filter (can be null); `body`
  macro,         ///< defaults of the last parameters; `name`, `names`: the parameters, `body`, `number`: MacroUse
  call_block,    ///< call, macro
  filter_block,  ///< filter; `body`
  with,          ///< targets and values alternately; `body`
  scope,         ///< `body`
  stop,          ///< `flag`: true for break, false for continue
};

/// Special names that a macro's body uses, as flags.
enum MacroUse : std::int64_t { uses_varargs = 1, uses_kwargs = 2, uses_caller = 4 };

enum class ArgumentKind : std::uint8_t { positional, named, all_positional, all_named };

struct Node;
using NodePointer = std::unique_ptr<Node>;

struct Argument {
  NodePointer value;
  std::string name;
  ArgumentKind kind = ArgumentKind::positional;
};

/// A node of a template's tree. No tree is deeper than max_tree_depth. NodeKind tells which members a node uses.
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

/// Parses a template. The root is a node of kind `scope`. Throws Error{data}.
[[nodiscard]] NodePointer parse_tree(std::string_view source);

}  // namespace shardrun::templates
