#include "core/template/evaluator.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <ctime>

#include "core/template/text.h"

namespace shardrun::templates {
namespace {

constexpr std::int64_t longest_range = 100'000;

Value range_of(Heap& heap, const Arguments& arguments) {
  const Bound bound("range", arguments, {"start", "stop", "step"}, 1);
  const std::int64_t first = bound.has(1) ? bound.integer(0, 0) : 0;
  const std::int64_t last = bound.has(1) ? bound.integer(1, 0) : bound.integer(0, 0);
  const std::int64_t step = bound.integer(2, 1);
  if (step == 0) {
    fail("range: the step is 0");
  }
  std::vector<Value> items;
  for (std::int64_t at = first; step > 0 ? at < last : at > last;) {
    if (static_cast<std::int64_t>(items.size()) == longest_range) {
      fail(fmt::format("range has more than {} numbers", longest_range));
    }
    items.push_back(Value::of(at));
    if (__builtin_add_overflow(at, step, &at)) {
      break;
    }
  }
  Value made = heap.list(std::move(items), ListKind::range);
  made.list->start = first;
  made.list->step = step;
  made.list->stop = last;
  return made;
}

/// The dict that Python's dict(…) would return for these arguments.
Dict dict_of(Heap& heap, const Arguments& arguments) {
  Dict made;
  if (arguments.positional.size() > 1) {
    fail("dict takes one value and names with values");
  }
  for (const Value& given : arguments.positional) {
    if (given.is(Kind::dict)) {
      made = *given.dict;
      continue;
    }
    const Iterator next = iterate(heap, given);
    while (const std::optional<Value> pair = next()) {
      const std::vector<Value> both = all_of(heap, *pair);
      if (both.size() != 2) {
        fail(fmt::format("dict: expected pairs, found {} values", both.size()));
      }
      set(heap, made, both[0], both[1]);
    }
  }
  for (const NamedValue& given : arguments.named) {
    set(heap, made, heap.text(given.name), given.value);
  }
  return made;
}

void require_open_name(std::string_view name) {
  if (name.starts_with('_')) {
    fail(fmt::format("a namespace has no attributes that begin with _, such as '{}'", name));
  }
}

Value namespace_of(Heap& heap, const Arguments& arguments) {
  Dict made = dict_of(heap, arguments);
  for (const auto& [key, value] : made.entries) {
    require_open_name(key.is(Kind::text) ? bytes_of(key) : "");
  }
  return heap.dict(std::move(made), Kind::name_space);
}

Value time_now(Heap& heap, const Arguments& arguments) {
  const Bound bound("strftime_now", arguments, {"format"}, 1);
  const auto now = std::chrono::system_clock::now();
  const std::time_t seconds = std::chrono::system_clock::to_time_t(now);
  std::tm parts{};
  localtime_r(&seconds, &parts);
  std::string form;
  for (std::string_view rest = bound.text(0); !rest.empty(); rest.remove_prefix(1)) {
    if (rest.starts_with("%f")) {
      const auto whole = std::chrono::duration_cast<std::chrono::microseconds>(now.time_since_epoch()).count();
      form += fmt::format("{:06}", whole % 1'000'000);
      rest.remove_prefix(1);
    } else if (rest.starts_with("%z") || rest.starts_with("%Z")) {
      rest.remove_prefix(1);  // empty, because the datetime has no time zone
    } else {
      form += rest[0];
      if (rest[0] == '%' && rest.size() > 1) {
        rest.remove_prefix(1);
        form += rest[0];
      }
    }
  }
  if (form.size() > 1000) {
    fail("strftime_now: the format has more than 1000 bytes");
  }
  std::array<char, 16384> made{};
  form += '.';  // The result is then never empty. For an empty text, strftime() returns 0, as for an error.
  const std::size_t size = std::strftime(made.data(), made.size(), form.c_str(), &parts);
  if (size == 0) {
    fail(fmt::format("strftime_now: the format makes more than {} bytes", made.size()));
  }
  return heap.text(std::string_view(made.data(), size - 1));
}

[[noreturn]] void refuse_by_template(Heap& heap, const Arguments& arguments) {
  const Bound bound("raise_exception", arguments, {"message"}, 1);
  fail(fmt::format("the template refuses this: {}", shown(heap, bound.at(0))));
}

}  // namespace

// Rendering -----------------------------------------------------------------------------------------------------------

Evaluator::Evaluator(const Limits& limits) : heap_(limits) {
  const auto add = [&](std::string_view name, auto make) {
    globals_.emplace_back(
        name, heap_.function(std::string(name), [this, make](const Arguments& given) { return make(heap_, given); }));
  };
  add("range", range_of);
  add("dict", [](Heap& heap, const Arguments& given) { return heap.dict(dict_of(heap, given)); });
  add("namespace", namespace_of);
  add("strftime_now", time_now);
  add("raise_exception", [](Heap& heap, const Arguments& given) -> Value { refuse_by_template(heap, given); });
}

std::string Evaluator::render(const Node& root, const boost::json::object& context) {
  Scope& given = scopes_.emplace_back();
  for (const auto& [name, value] : context) {
    given.variables.emplace_back(name, heap_.of_json(value));
  }
  return written(root.body, scope_within(given));
}

Scope& Evaluator::scope_within(Scope& outer) {
  heap_.charge(sizeof(Scope) + 4 * sizeof(Value));
  return scopes_.emplace_back(Scope{.outer = &outer});
}

void Evaluator::write(const Value& value) {
  if (value.is(Kind::text)) {
    *out_ += value.text->bytes;
    heap_.spend(1 + value.text->bytes.size() / 64);
  } else {
    *out_ += shown(heap_, value);
  }
  heap_.check_text(out_->size());
}

std::string Evaluator::written(const std::vector<NodePointer>& body, Scope& scope) {
  std::string text;
  std::string* const outer = std::exchange(out_, &text);
  run(body, scope);
  out_ = outer;
  heap_.charge(text.size());
  return text;
}

// Statements ----------------------------------------------------------------------------------------------------------

Evaluator::Flow Evaluator::run(const std::vector<NodePointer>& body, Scope& scope) {
  for (const NodePointer& node : body) {
    if (const Flow flow = run_node(*node, scope); flow != Flow::goes_on) {
      return flow;
    }
  }
  return Flow::goes_on;
}

Evaluator::Flow Evaluator::run_node(const Node& node, Scope& scope) {
  const Heap::Deeper deeper(heap_);
  heap_.spend(1);
  at_ = node.at;
  switch (node.kind) {
    case NodeKind::data:
      *out_ += node.name;
      heap_.spend(node.name.size() / 64);
      heap_.check_text(out_->size());
      break;
    case NodeKind::output:
      for (const NodePointer& part : node.parts) {
        const Value value = evaluate(*part, scope);
        at_ = part->at;
        write(value);
      }
      break;
    case NodeKind::condition: return run_condition(node, scope);
    case NodeKind::loop: run_loop(node, scope); break;
    case NodeKind::assign: assign(*node.parts[0], evaluate(*node.parts[1], scope), scope); break;
    case NodeKind::assign_block: {
      Value value = heap_.text(written(node.body, scope_within(scope)));
      if (node.parts[1]) {
        value = evaluate_filter(*node.parts[1], scope, &value);
      }
      assign(*node.parts[0], value, scope);
      break;
    }
    case NodeKind::macro: assign(node, macro(node, scope), scope); break;
    case NodeKind::call_block: {
      const Node& call_node = *node.parts[0];
      const Value function = evaluate(*call_node.parts[0], scope);
      Arguments given = arguments(call_node, scope);
      given.named.push_back({"caller", macro(*node.parts[1], scope)});
      at_ = call_node.at;
      write(call(function, given));
      break;
    }
    case NodeKind::filter_block: {
      const Value value = heap_.text(written(node.body, scope_within(scope)));
      const Value made = evaluate_filter(*node.parts[0], scope, &value);
      if (!made.is(Kind::text)) {
        fail(fmt::format("a filter block has to make a text, not {}", type_name(made)));
      }
      write(made);
      break;
    }
    case NodeKind::with: return run_with(node, scope);
    case NodeKind::scope:
      *out_ += written(node.body, scope_within(scope));
      heap_.check_text(out_->size());
      break;
    case NodeKind::stop: return node.flag ? Flow::stops : Flow::next;
    default: break;
  }
  return Flow::goes_on;
}

Evaluator::Flow Evaluator::run_condition(const Node& node, Scope& scope) {
  for (const NodePointer& branch : node.body) {
    if (!branch->parts[0] || truth(evaluate(*branch->parts[0], scope))) {
      return run(branch->body, scope);
    }
  }
  return Flow::goes_on;
}

Evaluator::Flow Evaluator::run_with(const Node& node, Scope& scope) {
  Scope& within = scope_within(scope);
  for (std::size_t i = 0; i < node.parts.size(); i += 2) {
    assign(*node.parts[i], evaluate(*node.parts[i + 1], scope), within);
  }
  return run(node.body, within);
}

void Evaluator::assign(const Node& target, const Value& value, Scope& scope) {
  if (target.kind == NodeKind::variable || target.kind == NodeKind::macro) {
    heap_.spend(scope.variables.size() * (1 + target.name.size() / 64) / 16);
    const auto found =
        std::ranges::find(scope.variables, std::string_view(target.name), &std::pair<std::string_view, Value>::first);
    if (found != scope.variables.end()) {
      found->second = value;
    } else {
      heap_.charge(sizeof(Value) * 2);
      scope.variables.emplace_back(target.name, value);
    }
    return;
  }
  at_ = target.at;
  if (target.kind == NodeKind::member) {
    const Value object = variable(target, scope);
    if (!object.is(Kind::name_space)) {
      fail(fmt::format("'{}' is no namespace, so that its attribute '{}' cannot be set", target.name, target.names[0]));
    }
    require_open_name(target.names[0]);
    set(heap_, *object.dict, heap_.text(target.names[0]), value);
    return;
  }
  const std::vector<Value> values = all_of(heap_, value);
  if (values.size() != target.parts.size()) {
    fail(fmt::format("expected {} values for as many names, found {}", target.parts.size(), values.size()));
  }
  for (std::size_t i = 0; i < values.size(); ++i) {
    assign(*target.parts[i], values[i], scope);
  }
}

// Loops ---------------------------------------------------------------------------------------------------------------

std::optional<Value> Loop::pull() {
  if (after) {
    return std::exchange(after, std::nullopt);
  }
  if (!rest.empty()) {
    const Value value = rest.back();
    rest.pop_back();
    return value;
  }
  return next ? next() : std::nullopt;
}

const std::optional<Value>& Loop::peek() {
  if (!after) {
    after = pull();
  }
  return after;
}

void Evaluator::run_loop(const Node& node, Scope& scope) {
  const Value iterable = evaluate(*node.parts[1], scope);
  at_ = node.at;
  run_loop_over(node, scope, iterable, 0);
}

void Evaluator::run_loop_over(const Node& node, Scope& outer, const Value& iterable, std::int64_t depth) {
  heap_.charge(sizeof(Loop));
  Loop& loop = loops_.emplace_back(Loop{.node = &node, .outer = &outer, .depth = depth});
  loop.next = iterate(heap_, iterable);
  if (!node.parts[2]) {
    heap_.spend(iterable.is(Kind::text) ? bytes_of(iterable).size() / 64 : 0);
    loop.length = length_of(iterable);
  } else {
    loop.next = [this, &node, &outer, given = loop.next]() -> std::optional<Value> {
      while (std::optional<Value> value = given()) {
        Scope& tried = scope_within(outer);
        assign(*node.parts[0], *value, tried);
        if (truth(evaluate(*node.parts[2], tried))) {
          return value;
        }
      }
      return std::nullopt;
    };
  }
  Value shown_loop;
  shown_loop.kind = Kind::loop;
  shown_loop.loop = &loop;
  Scope* scope = &scope_within(outer);
  while (std::optional<Value> value = loop.pull()) {
    heap_.spend(1);
    ++loop.index;
    loop.before = std::exchange(loop.current, value);
    if (scope->is_captured) {
      scope = &scope_within(outer);
    }
    scope->variables.clear();
    scope->variables.emplace_back("loop", shown_loop);
    assign(*node.parts[0], *value, *scope);
    if (run(node.body, *scope) == Flow::stops) {
      break;
    }
  }
  if (loop.index < 0 && !node.otherwise.empty()) {
    run(node.otherwise, scope_within(outer));
  }
  loop.next = nullptr;
}

std::int64_t Evaluator::length_of_loop(Loop& loop) {
  if (!loop.length) {
    std::vector<Value> rest;
    while (const std::optional<Value> value = loop.next ? loop.next() : std::nullopt) {
      heap_.charge(sizeof(Value));
      rest.push_back(*value);
    }
    loop.length = static_cast<std::int64_t>(rest.size()) + loop.index + 1 + (loop.after ? 1 : 0);
    std::ranges::reverse(rest);
    loop.rest = std::move(rest);
  }
  return *loop.length;
}

Value Evaluator::loop_attribute(Loop& loop, std::string_view name) {
  if (name == "index" || name == "index0") {
    return Value::of(loop.index + (name == "index" ? 1 : 0));
  }
  if (name == "first") {
    return Value::of(loop.index == 0);
  }
  if (name == "last") {
    return Value::of(!loop.peek());
  }
  if (name == "length" || name == "revindex" || name == "revindex0") {
    const std::int64_t length = length_of_loop(loop);
    return Value::of(name == "length" ? length : length - loop.index - (name == "revindex" ? 0 : 1));
  }
  if (name == "depth" || name == "depth0") {
    return Value::of(loop.depth + (name == "depth" ? 1 : 0));
  }
  if (name == "previtem") {
    return loop.index > 0 && loop.before ? *loop.before : heap_.undefined("there is no previous item");
  }
  if (name == "nextitem") {
    return loop.peek() ? *loop.peek() : heap_.undefined("there is no next item");
  }
  if (name == "cycle") {
    return heap_.function("cycle", [&loop](const Arguments& given) {
      if (given.positional.empty() || !given.named.empty()) {
        fail("loop.cycle takes one or more values");
      }
      return given.positional[static_cast<std::size_t>(loop.index) % given.positional.size()];
    });
  }
  if (name == "changed") {
    return heap_.function("changed", [this, &loop](const Arguments& given) {
      const Value values = heap_.list(given.positional, ListKind::tuple);
      const bool is_changed = !loop.changed || !equal(heap_, *loop.changed, values);
      loop.changed = values;
      return Value::of(is_changed);
    });
  }
  return heap_.undefined(fmt::format("'loop' has no attribute '{}'", name));
}

// Macros --------------------------------------------------------------------------------------------------------------

Value Evaluator::macro(const Node& node, Scope& scope) {
  for (Scope* at = &scope; at != nullptr && !at->is_captured; at = at->outer) {
    at->is_captured = true;
  }
  return heap_.function(
      node.name, [this, &node, &scope](const Arguments& given) { return call_macro(node, scope, given); }, true);
}

Value Evaluator::call_macro(const Node& node, Scope& closure, const Arguments& given) {
  const Heap::Deeper deeper(heap_);
  Scope& scope = scope_within(closure);
  std::vector<NamedValue> named = given.named;
  const auto take_named = [&](std::string_view name) -> std::optional<Value> {
    heap_.spend(named.size() / 8);
    const auto found = std::ranges::find(named, name, &NamedValue::name);
    if (found == named.end()) {
      return std::nullopt;
    }
    const Value value = found->value;
    named.erase(found);
    return value;
  };
  const std::size_t without_default = node.names.size() - node.parts.size();
  for (std::size_t i = 0; i < node.names.size(); ++i) {
    const std::string& name = node.names[i];
    std::optional<Value> value =
        i < given.positional.size() ? std::optional<Value>(given.positional[i]) : take_named(name);
    if (!value) {
      value = i >= without_default ? evaluate(*node.parts[i - without_default], scope)
                                   : heap_.undefined(fmt::format("parameter '{}' was not provided", name));
    }
    scope.variables.emplace_back(name, *value);
  }
  if ((node.number & uses_caller) != 0 && std::ranges::find(node.names, "caller") == node.names.end()) {
    const std::optional<Value> caller = take_named("caller");
    scope.variables.emplace_back("caller", caller ? *caller : heap_.undefined("No caller defined"));
  }
  if ((node.number & uses_kwargs) != 0) {
    scope.variables.emplace_back("kwargs", heap_.dict(dict_of(heap_, {.positional = {}, .named = named})));
  } else if (!named.empty()) {
    fail(fmt::format("the macro '{}' has no parameter '{}'", node.name, named[0].name));
  }
  const std::size_t taken = std::min(node.names.size(), given.positional.size());
  if ((node.number & uses_varargs) != 0) {
    scope.variables.emplace_back(
        "varargs", heap_.list({given.positional.begin() + static_cast<std::ptrdiff_t>(taken), given.positional.end()},
                              ListKind::tuple));
  } else if (taken < given.positional.size()) {
    fail(fmt::format("the macro '{}' takes at most {} arguments, not {}", node.name, node.names.size(),
                     given.positional.size()));
  }
  return heap_.text(written(node.body, scope));
}

}  // namespace shardrun::templates
