#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <initializer_list>
#include <utility>

#include "core/template/syntax.h"

namespace shardrun::templates {
namespace {

constexpr int max_nesting = 100;

std::string shown(const Token& token) {
  switch (token.kind) {
    case TokenKind::data:
    case TokenKind::end: return "the end of the template";
    case TokenKind::variable_begin: return "'{{'";
    case TokenKind::variable_end: return "'}}'";
    case TokenKind::block_begin: return "'{%'";
    case TokenKind::block_end: return "'%}'";
    default: return fmt::format("'{}'", token.text);
  }
}

/// The names of tags that end a list of statements, such as {"elif", "else", "endif"}.
using Ends = std::initializer_list<std::string_view>;

class Parser {
 public:
  explicit Parser(std::string_view source) : tokens_(tokens_of(source)) {}

  NodePointer run() {
    NodePointer root = make(NodeKind::scope);
    root->body = statements({});
    return finished(std::move(root));
  }

 private:
  /// Limits how deeply the parse functions call each other. Throws Error{data} beyond the limit.
  class Nested {
   public:
    explicit Nested(Parser& parser) : parser_(parser) {
      if (++parser_.nesting_ > max_nesting) {
        fail_at(parser_.now().at, fmt::format("this is nested more than {} times", max_nesting));
      }
    }
    Nested(const Nested&) = delete;
    Nested& operator=(const Nested&) = delete;
    ~Nested() { --parser_.nesting_; }

   private:
    Parser& parser_;
  };

  [[nodiscard]] const Token& now() const { return tokens_[at_]; }
  [[nodiscard]] const Token& ahead() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  const Token& take() {
    const Token& token = tokens_[at_];
    at_ = std::min(at_ + 1, tokens_.size() - 1);
    return token;
  }
  bool take_if(std::string_view symbol) {
    const bool is_it = now().is(symbol);
    at_ += is_it ? 1 : 0;
    return is_it;
  }
  bool take_name(std::string_view name) {
    const bool is_it = now().is_name(name);
    at_ += is_it ? 1 : 0;
    return is_it;
  }
  [[noreturn]] void fail_expected(std::string_view what) const {
    fail_at(now().at, fmt::format("expected {}, found {}", what, shown(now())));
  }
  void expect(std::string_view symbol) {
    if (!take_if(symbol)) {
      fail_expected(fmt::format("'{}'", symbol));
    }
  }
  std::string expect_name() {
    if (now().kind != TokenKind::name) {
      fail_expected("a name");
    }
    return take().text;
  }
  void expect_kind(TokenKind kind, std::string_view what) {
    if (now().kind != kind) {
      fail_expected(what);
    }
    take();
  }

  [[nodiscard]] NodePointer make(NodeKind kind, std::string name = {}) const {
    auto node = std::make_unique<Node>();
    node->kind = kind;
    node->at = now().at;
    node->name = std::move(name);
    return node;
  }
  template <typename... Parts>
  NodePointer make_of(NodeKind kind, Position at, std::string name, Parts... parts) {
    NodePointer node = make(kind, std::move(name));
    node->at = at;
    (node->parts.push_back(std::move(parts)), ...);
    return finished(std::move(node));
  }
  /// Sets the depth of a node whose parts are all known. Throws Error{data} if the tree becomes too deep.
  static NodePointer finished(NodePointer node) {
    const auto count = [&](const NodePointer& part) {
      node->depth = std::max(node->depth, part ? part->depth + 1 : 0);
    };
    std::ranges::for_each(node->parts, count);
    std::ranges::for_each(node->arguments, count, &Argument::value);
    std::ranges::for_each(node->body, count);
    std::ranges::for_each(node->otherwise, count);
    if (node->depth > max_tree_depth) {
      fail_at(node->at, fmt::format("this holds more than {} operations within each other", max_tree_depth));
    }
    return node;
  }

  // Statements --------------------------------------------------------------------------------------------------------

  /// Parses statements up to a tag whose name is in `ends`. Afterwards, that name is the next token. With empty `ends`,
  /// parses up to the end of the template.
  std::vector<NodePointer> statements(Ends ends) {
    std::vector<NodePointer> body;
    while (true) {
      if (now().kind == TokenKind::data) {
        body.push_back(make(NodeKind::data, now().text));
        take();
      } else if (now().kind == TokenKind::variable_begin) {
        take();
        NodePointer node = make(NodeKind::output);
        node->parts.push_back(tuple_or_one());
        expect_kind(TokenKind::variable_end, "'}}'");
        body.push_back(finished(std::move(node)));
      } else if (now().kind == TokenKind::block_begin) {
        take();
        if (std::ranges::find(ends, now().kind == TokenKind::name ? std::string_view(now().text) : "") != ends.end()) {
          return body;
        }
        body.push_back(statement(ends));
        expect_kind(TokenKind::block_end, "'%}'");
      } else if (ends.size() > 0) {
        fail_at(now().at, fmt::format("the template ends where {{% {} %}} is missing", *(ends.end() - 1)));
      } else {
        return body;
      }
    }
  }
  /// Parses the rest of a tag and the body up to a tag in `ends`. If `ends` has one name, also takes that name.
  std::vector<NodePointer> body_to(Ends ends) {
    take_if(":");
    expect_kind(TokenKind::block_end, "'%}'");
    std::vector<NodePointer> body = statements(ends);
    if (ends.size() == 1) {
      take();
    }
    return body;
  }

  template <typename Read>
  auto outside_loops(Read read) {
    const int loops = std::exchange(loops_, 0);
    auto result = read();
    loops_ = loops;
    return result;
  }

  NodePointer statement(Ends ends) {
    const Nested nested(*this);
    if (now().kind != TokenKind::name) {
      fail_expected("the name of a tag");
    }
    const Position at = now().at;
    const std::string tag = take().text;
    NodePointer node = statement_of(tag);
    if (!node) {
      constexpr std::array<std::string_view, 9> others = {"block", "extends",    "include", "import", "from",
                                                          "do",    "autoescape", "trans",   "debug"};
      const bool is_known = std::ranges::find(others, tag) != others.end();
      fail_at(at, is_known           ? fmt::format("the tag '{}' is not supported", tag)
                  : ends.size() == 0 ? fmt::format("there is no tag '{}' here", tag)
                                     : fmt::format("there is no tag '{}' here; the block that is open ends with '{}'",
                                                   tag, *(ends.end() - 1)));
    }
    node->at = at;
    return finished(std::move(node));
  }

  NodePointer statement_of(std::string_view tag) {
    if (tag == "for") {
      return for_loop();
    }
    if (tag == "if") {
      return condition();
    }
    if (tag == "set") {
      return assignment();
    }
    if (tag == "macro") {
      return macro();
    }
    if (tag == "call") {
      return call_block();
    }
    if (tag == "filter") {
      NodePointer node = make(NodeKind::filter_block);
      node->parts.push_back(filters(nullptr, true));
      node->body = outside_loops([&] { return body_to({"endfilter"}); });
      return node;
    }
    if (tag == "with") {
      return with_block();
    }
    if (tag == "generation") {
      NodePointer node = make(NodeKind::scope);
      node->body = outside_loops([&] { return body_to({"endgeneration"}); });
      return node;
    }
    if (tag == "print") {
      NodePointer node = make(NodeKind::output);
      while (now().kind != TokenKind::block_end) {
        if (!node->parts.empty()) {
          expect(",");
        }
        node->parts.push_back(expression());
      }
      return node;
    }
    if (tag == "break" || tag == "continue") {
      if (loops_ == 0) {
        fail_at(now().at, fmt::format("'{}' is not within a for", tag));
      }
      NodePointer node = make(NodeKind::stop);
      node->flag = tag == "break";
      return node;
    }
    return nullptr;
  }

  NodePointer for_loop() {
    NodePointer node = make(NodeKind::loop);
    NodePointer target = assign_target(false, true);
    require_not_loop(*target);
    if (!take_name("in")) {
      fail_expected("'in'");
    }
    node->parts.push_back(std::move(target));
    node->parts.push_back(tuple_or_one(false, false, "recursive"));
    node->parts.push_back(take_name("if") ? expression() : nullptr);
    node->flag = take_name("recursive");
    ++loops_;
    node->body = body_to({"else", "endfor"});
    --loops_;
    if (take().text == "else") {
      node->otherwise = body_to({"endfor"});
    }
    return node;
  }

  void require_not_loop(const Node& target) {
    if (target.kind == NodeKind::variable && target.name == "loop") {
      fail_at(target.at, "'loop' cannot be the target of a for");
    }
    for (const NodePointer& part : target.parts) {
      require_not_loop(*part);
    }
  }

  NodePointer condition() {
    NodePointer node = make(NodeKind::condition);
    for (bool has_test = true;;) {
      NodePointer branch = make(NodeKind::branch);
      branch->parts.push_back(has_test ? tuple_or_one(false) : nullptr);
      branch->body = has_test ? body_to({"elif", "else", "endif"}) : body_to({"endif"});
      node->body.push_back(finished(std::move(branch)));
      if (!has_test) {
        return node;
      }
      const std::string end = take().text;
      if (end == "endif") {
        return node;
      }
      has_test = end == "elif";
    }
  }

  NodePointer assignment() {
    NodePointer target = assign_target(true, true);
    if (take_if("=")) {
      NodePointer node = make(NodeKind::assign);
      node->parts.push_back(std::move(target));
      node->parts.push_back(tuple_or_one());
      return node;
    }
    NodePointer node = make(NodeKind::assign_block);
    node->parts.push_back(std::move(target));
    node->parts.push_back(filters(nullptr, false));
    node->body = outside_loops([&] { return body_to({"endset"}); });
    return node;
  }

  /// Parses the parameters of a macro, such as (a, b=1).
  void signature(Node& macro) {
    expect("(");
    while (!now().is(")")) {
      if (!macro.names.empty()) {
        expect(",");
      }
      macro.names.push_back(expect_name());
      if (take_if("=")) {
        macro.parts.push_back(expression());
      } else if (!macro.parts.empty()) {
        fail_at(now().at, "a parameter without a default follows one with a default");
      }
    }
    expect(")");
  }

  /// Parses a macro's body, and notes whether it uses varargs, kwargs or caller.
  void macro_body(Node& macro, Ends ends) {
    const std::int64_t outer = std::exchange(uses_, 0);
    macro.body = outside_loops([&] { return body_to(ends); });
    macro.number = uses_;
    uses_ |= outer;
  }

  NodePointer macro() {
    NodePointer node = make(NodeKind::macro);
    node->name = expect_name();
    signature(*node);
    macro_body(*node, {"endmacro"});
    return node;
  }

  NodePointer call_block() {
    NodePointer caller = make(NodeKind::macro, "caller");
    if (now().is("(")) {
      signature(*caller);
    }
    NodePointer node = make(NodeKind::call_block);
    node->parts.push_back(expression());
    if (node->parts[0]->kind != NodeKind::call) {
      fail_at(node->at, "expected a call");
    }
    macro_body(*caller, {"endcall"});
    node->parts.push_back(finished(std::move(caller)));
    return node;
  }

  NodePointer with_block() {
    NodePointer node = make(NodeKind::with);
    while (now().kind != TokenKind::block_end) {
      if (!node->parts.empty()) {
        expect(",");
      }
      node->parts.push_back(assign_target(false, false));
      expect("=");
      node->parts.push_back(expression());
    }
    node->body = body_to({"endwith"});
    return node;
  }

  NodePointer assign_target(bool with_member, bool with_tuple) {
    const Position at = now().at;
    NodePointer target = with_tuple ? tuple_or_one(true, true, "in", with_member) : primary(with_member);
    const auto can_be_set = [](const Node& node, auto& self) -> bool {
      return node.kind == NodeKind::variable || node.kind == NodeKind::member ||
             (node.kind == NodeKind::tuple &&
              std::ranges::all_of(node.parts, [&](const NodePointer& part) { return self(*part, self); }));
    };
    if (!can_be_set(*target, can_be_set)) {
      fail_at(at, "expected a name to set");
    }
    return target;
  }

  // Expressions -------------------------------------------------------------------------------------------------------

  /// Parses an expression, or a tuple of several. `simple`: only targets of assignments are allowed. `end`: a name that
  /// ends the tuple, such as "in".
  NodePointer tuple_or_one(bool with_choice = true, bool simple = false, std::string_view end = {},
                           bool with_member = false, bool may_be_empty = false) {
    const Position at = now().at;
    std::vector<NodePointer> parts;
    bool is_tuple = false;
    while (true) {
      if (!parts.empty()) {
        expect(",");
      }
      if (now().kind == TokenKind::variable_end || now().kind == TokenKind::block_end || now().is(")") ||
          (!end.empty() && now().is_name(end))) {
        break;
      }
      parts.push_back(simple ? primary(with_member) : with_choice ? expression() : disjunction());
      if (!now().is(",")) {
        break;
      }
      is_tuple = true;
    }
    if (!is_tuple && !parts.empty()) {
      return std::move(parts[0]);
    }
    if (!is_tuple && !may_be_empty) {
      fail_expected("an expression");
    }
    NodePointer node = make(NodeKind::tuple);
    node->at = at;
    node->parts = std::move(parts);
    return finished(std::move(node));
  }

  NodePointer expression() {
    const Nested nested(*this);
    NodePointer node = disjunction();
    while (now().is_name("if")) {
      const Position at = take().at;
      NodePointer test = disjunction();
      NodePointer other = take_name("else") ? expression() : nullptr;
      node = make_of(NodeKind::choice, at, "", std::move(test), std::move(node), std::move(other));
    }
    return node;
  }

  /// Parses operands joined by the operator `name`. Returns the operand if there is only one,
  /// otherwise a node with all.
  template <typename Read>
  NodePointer joined(NodeKind kind, std::string_view name, Read read) {
    const Position at = now().at;
    NodePointer first = read();
    if (!now().is_name(name) && !now().is(name)) {
      return first;
    }
    NodePointer node = make(kind);
    node->at = at;
    node->parts.push_back(std::move(first));
    while (take_name(name) || take_if(name)) {
      node->parts.push_back(read());
    }
    return finished(std::move(node));
  }

  NodePointer disjunction() {
    return joined(NodeKind::either, "or", [&] { return joined(NodeKind::both, "and", [&] { return negation(); }); });
  }

  NodePointer negation() {
    if (!now().is_name("not")) {
      return comparison();
    }
    const Nested nested(*this);
    const Position at = take().at;
    return make_of(NodeKind::negation, at, "", negation());
  }

  NodePointer comparison() {
    NodePointer node = make(NodeKind::compare);
    node->parts.push_back(sum());
    while (true) {
      const Token& token = now();
      if (token.is("==") || token.is("!=") || token.is("<") || token.is("<=") || token.is(">") || token.is(">=") ||
          token.is_name("in")) {
        node->names.push_back(take().text);
      } else if (token.is_name("not") && ahead().is_name("in")) {
        take();
        take();
        node->names.emplace_back("not in");
      } else {
        break;
      }
      node->parts.push_back(sum());
    }
    return node->names.empty() ? std::move(node->parts[0]) : finished(std::move(node));
  }

  template <typename Read>
  NodePointer left_to_right(std::initializer_list<std::string_view> symbols, Read read) {
    NodePointer node = read();
    while (now().kind == TokenKind::symbol && std::ranges::find(symbols, now().text) != symbols.end()) {
      const Token& symbol = take();
      NodePointer right = read();
      node = make_of(NodeKind::binary, symbol.at, symbol.text, std::move(node), std::move(right));
    }
    return node;
  }

  NodePointer sum() {
    return left_to_right({"+", "-"}, [&] {
      return joined(NodeKind::concat, "~", [&] {
        return left_to_right({"*", "/", "//", "%"}, [&] { return left_to_right({"**"}, [&] { return unary(true); }); });
      });
    });
  }

  NodePointer unary(bool with_filters) {
    const Nested nested(*this);
    NodePointer node;
    if (now().is("-") || now().is("+")) {
      const Token& symbol = take();
      node = make_of(NodeKind::unary, symbol.at, symbol.text, unary(false));
    } else {
      node = primary(false);
    }
    node = postfix(std::move(node));
    while (with_filters) {
      if (now().is("|")) {
        node = filters(std::move(node), false);
      } else if (now().is_name("is")) {
        node = test(std::move(node));
      } else if (now().is("(")) {
        node = call(std::move(node));
      } else {
        break;
      }
    }
    return node;
  }

  NodePointer primary(bool with_member) {
    const Token& token = now();
    if (token.kind == TokenKind::name) {
      return name(with_member);
    }
    if (token.kind == TokenKind::text) {
      NodePointer node = make(NodeKind::text);
      while (now().kind == TokenKind::text) {
        node->name += take().text;
      }
      return node;
    }
    if (token.kind == TokenKind::integer || token.kind == TokenKind::real) {
      NodePointer node = make(token.kind == TokenKind::integer ? NodeKind::integer : NodeKind::real);
      node->number = token.integer;
      node->real = token.real;
      take();
      return node;
    }
    const Nested nested(*this);
    if (take_if("(")) {
      NodePointer node = tuple_or_one(true, false, {}, false, true);
      expect(")");
      return node;
    }
    if (token.is("[") || token.is("{")) {
      return list_or_dict();
    }
    fail_expected("an expression");
  }

  NodePointer name(bool with_member) {
    const std::string& text = now().text;
    NodePointer node = make(NodeKind::variable, text);
    take();
    if (text == "true" || text == "True" || text == "false" || text == "False") {
      node->kind = NodeKind::boolean;
      node->flag = text == "true" || text == "True";
    } else if (text == "none" || text == "None") {
      node->kind = NodeKind::none;
    } else if (with_member && take_if(".")) {
      node->kind = NodeKind::member;
      node->names.push_back(expect_name());
    } else {
      uses_ |= text == "varargs"  ? std::int64_t{uses_varargs}
               : text == "kwargs" ? std::int64_t{uses_kwargs}
               : text == "caller" ? std::int64_t{uses_caller}
                                  : 0;
    }
    return node;
  }

  NodePointer list_or_dict() {
    const bool is_dict = now().is("{");
    const std::string_view end = is_dict ? "}" : "]";
    NodePointer node = make(is_dict ? NodeKind::dict : NodeKind::list);
    take();
    while (!now().is(end)) {
      if (!node->parts.empty()) {
        expect(",");
        if (now().is(end)) {
          break;
        }
      }
      node->parts.push_back(expression());
      if (is_dict) {
        expect(":");
        node->parts.push_back(expression());
      }
    }
    expect(end);
    return finished(std::move(node));
  }

  NodePointer postfix(NodePointer node) {
    while (true) {
      if (now().is("(")) {
        node = call(std::move(node));
      } else if (now().is(".")) {
        const Position at = take().at;
        if (now().kind == TokenKind::integer) {
          NodePointer index = primary(false);
          node = make_of(NodeKind::item, at, "", std::move(node), std::move(index));
        } else {
          node = make_of(NodeKind::attribute, at, expect_name(), std::move(node));
        }
      } else if (now().is("[")) {
        const Position at = take().at;
        NodePointer key = subscript();
        if (now().is(",")) {
          NodePointer keys = make(NodeKind::tuple);
          keys->parts.push_back(std::move(key));
          while (take_if(",")) {
            keys->parts.push_back(subscript());
          }
          key = finished(std::move(keys));
        }
        expect("]");
        node = make_of(NodeKind::item, at, "", std::move(node), std::move(key));
      } else {
        return node;
      }
    }
  }

  NodePointer subscript() {
    const Position at = now().at;
    NodePointer first = now().is(":") ? nullptr : expression();
    if (first && !now().is(":")) {
      return first;
    }
    expect(":");
    const auto part = [&]() -> NodePointer {
      return now().is(":") || now().is("]") || now().is(",") ? nullptr : expression();
    };
    NodePointer last = part();
    NodePointer step = take_if(":") ? part() : nullptr;
    return make_of(NodeKind::slice, at, "", std::move(first), std::move(last), std::move(step));
  }

  void arguments(Node& node) {
    const Position at = now().at;
    expect("(");
    ArgumentKind latest = ArgumentKind::positional;
    while (!now().is(")")) {
      if (!node.arguments.empty()) {
        expect(",");
        if (now().is(")")) {
          break;
        }
      }
      Argument argument;
      if (take_if("*")) {
        argument.kind = ArgumentKind::all_positional;
      } else if (take_if("**")) {
        argument.kind = ArgumentKind::all_named;
      } else if (now().kind == TokenKind::name && ahead().is("=")) {
        argument.kind = ArgumentKind::named;
        argument.name = take().text;
        take();
      }
      const bool is_named = latest == ArgumentKind::named || latest == ArgumentKind::all_positional;
      if (latest == ArgumentKind::all_named || (argument.kind == ArgumentKind::positional && is_named)) {
        fail_at(at, "arguments come in this order: values, names with values, *list, **dict");
      }
      latest = argument.kind;
      argument.value = expression();
      node.arguments.push_back(std::move(argument));
    }
    expect(")");
  }

  NodePointer call(NodePointer function) {
    NodePointer node = make(NodeKind::call);
    node->parts.push_back(std::move(function));
    arguments(*node);
    return finished(std::move(node));
  }

  std::string dotted_name() {
    std::string name = expect_name();
    while (take_if(".")) {
      name += "." + expect_name();
    }
    return name;
  }

  /// Parses the filters that follow a value. `is_first`: the next token is the first filter's name, without a "|".
  NodePointer filters(NodePointer value, bool is_first) {
    while (is_first || take_if("|")) {
      is_first = false;
      NodePointer node = make(NodeKind::filter);
      node->name = dotted_name();
      node->parts.push_back(std::move(value));
      if (now().is("(")) {
        arguments(*node);
      }
      value = finished(std::move(node));
    }
    return value;
  }

  NodePointer test(NodePointer value) {
    const Position at = take().at;
    const bool is_negated = take_name("not");
    NodePointer node = make(NodeKind::test);
    node->name = dotted_name();
    node->parts.push_back(std::move(value));
    const Token& token = now();
    if (token.is("(")) {
      arguments(*node);
    } else if ((token.kind == TokenKind::name && !token.is_name("else") && !token.is_name("or") &&
                !token.is_name("and")) ||
               token.kind == TokenKind::text || token.kind == TokenKind::integer || token.kind == TokenKind::real ||
               token.is("[") || token.is("{")) {
      if (token.is_name("is")) {
        fail_at(token.at, "tests cannot be chained with 'is'");
      }
      Argument argument;
      argument.value = postfix(primary(false));
      node->arguments.push_back(std::move(argument));
    }
    node = finished(std::move(node));
    return is_negated ? make_of(NodeKind::negation, at, "", std::move(node)) : std::move(node);
  }

  std::vector<Token> tokens_;
  std::size_t at_ = 0;
  int nesting_ = 0;
  int loops_ = 0;          ///< the number of loops that contain the current statement
  std::int64_t uses_ = 0;  ///< MacroUse flags of the macro that is being parsed
};

}  // namespace

NodePointer parse_tree(std::string_view source) { return Parser(source).run(); }

}  // namespace shardrun::templates
