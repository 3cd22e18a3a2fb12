#pragma once

#include <boost/json/object.hpp>
#include <deque>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/template/syntax.h"
#include "core/template/value.h"

namespace shardrun::templates {

/// The variables of a block of statements.
struct Scope {
  Scope* outer = nullptr;
  std::vector<std::pair<std::string_view, Value>> variables = {};
  bool is_captured = false;  ///< whether a macro refers to the scope, so that a loop must not use it again
};

/// An evaluator renders a template's tree once. The tree must outlive the evaluator.
class Evaluator {
 public:
  explicit Evaluator(const Limits& limits);

  [[nodiscard]] std::string render(const Node& root, const boost::json::object& context);
  /// The place in the template of the operation that was begun last, for error messages.
  [[nodiscard]] Position at() const noexcept { return at_; }
  [[nodiscard]] Heap& heap() noexcept { return heap_; }

  // Functions for filters, tests and methods.
  Value filter(std::string_view name, const Value& value, const Arguments& arguments);
  bool test(std::string_view name, const Value& value, const Arguments& arguments);
  /// `object.name`; an undefined value if the object has no such attribute. Throws Error{data} for undefined objects.
  Value attribute(const Value& object, std::string_view name);
  /// `object[key]`; an undefined value if there is no such item. Throws Error{data} if `object` is undefined.
  Value item(const Value& object, const Value& key);

 private:
  enum class Flow : std::uint8_t { goes_on, next, stops };

  // Statements.
  Flow run(const std::vector<NodePointer>& body, Scope& scope);
  Flow run_node(const Node& node, Scope& scope);
  Flow run_condition(const Node& node, Scope& scope);
  void run_loop(const Node& node, Scope& scope);
  void run_loop_over(const Node& node, Scope& outer, const Value& iterable, std::int64_t depth);
  Flow run_with(const Node& node, Scope& scope);
  void write(const Value& value);
  /// Runs `body` and returns its output as a text.
  std::string written(const std::vector<NodePointer>& body, Scope& scope);
  void assign(const Node& target, const Value& value, Scope& scope);
  Scope& scope_within(Scope& outer);
  Value macro(const Node& node, Scope& scope);
  Value call_macro(const Node& node, Scope& closure, const Arguments& arguments);

  // Expressions.
  Value evaluate(const Node& node, Scope& scope);
  Value evaluate_choice(const Node& node, Scope& scope);
  Value evaluate_container(const Node& node, Scope& scope);
  Value evaluate_compare(const Node& node, Scope& scope);
  Value evaluate_concat(const Node& node, Scope& scope);
  Value evaluate_item(const Node& node, Scope& scope);
  Value evaluate_call(const Node& node, Scope& scope);
  Value evaluate_filter(const Node& node, Scope& scope, const Value* value);
  Value evaluate_test(const Node& node, Scope& scope);
  Value variable(const Node& node, const Scope& scope);
  Arguments arguments(const Node& node, Scope& scope);
  Value call(const Value& function, const Arguments& arguments);
  Value loop_attribute(Loop& loop, std::string_view name);
  std::int64_t length_of_loop(Loop& loop);

  Heap heap_;
  Position at_;
  std::string* out_ = nullptr;
  std::deque<Scope> scopes_;
  std::deque<Loop> loops_;
  std::vector<std::pair<std::string_view, Value>> globals_;
};

/// The state of a `for` statement that is running.
struct Loop {
  const Node* node = nullptr;
  Scope* outer = nullptr;
  Iterator next = {};
  std::vector<Value> rest = {};  ///< values read in advance to know the length; the next one is last
  std::optional<Value> after = {};
  std::optional<Value> before = {};
  std::optional<Value> current = {};
  std::optional<Value> changed = {};
  std::optional<std::int64_t> length = {};
  std::int64_t index = -1;  ///< counted from 0; -1 before the first value
  std::int64_t depth = 0;

  std::optional<Value> pull();
  /// The value after the current one, read in advance; nothing if the current one is the last.
  const std::optional<Value>& peek();
};

// operators.cpp, format.cpp -------------------------------------------------------------------------------------------

Value unary(const Value& operand, std::string_view symbol);
Value binary(Heap& heap, const Value& a, const Value& b, std::string_view symbol);
Value slice(Heap& heap, const Value& object, const Value& from, const Value& to, const Value& step);
/// Escapes HTML as Python's markupsafe does.
[[nodiscard]] std::string escaped(std::string_view text);
/// Python's `form % values`.
[[nodiscard]] std::string formatted_by_percent(Heap& heap, std::string_view form, const Value& values);
/// Python's `form.format(…)`.
[[nodiscard]] std::string formatted_by_braces(Evaluator& evaluator, std::string_view form, const Arguments& arguments);

// methods.cpp ---------------------------------------------------------------------------------------------------------

/// A method of `object` that is bound to it, or nothing if there is none. If the sandbox refuses the method, the result
/// is an undefined value with the reason. Throws Error{data} for a method of Python that is not supported here.
[[nodiscard]] std::optional<Value> method_of(Evaluator& evaluator, const Value& object, std::string_view name);

/// A filter, a test or a method, with the name by which templates call it.
template <class Result>
struct Named {
  std::string_view name;
  Result (*run)(Evaluator& evaluator, const Value& value, const Arguments& arguments);
};

}  // namespace shardrun::templates
