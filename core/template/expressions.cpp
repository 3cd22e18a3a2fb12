#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "core/template/evaluator.h"
#include "core/template/text.h"

namespace shardrun::templates {
namespace {

std::string no_attribute(const Value& object, std::string_view name) {
  return object.is(Kind::none) ? fmt::format("None has no attribute '{}'", name)
                               : fmt::format("'{} object' has no attribute '{}'", type_name(object), name);
}

}  // namespace

Value Evaluator::evaluate(const Node& node, Scope& scope) {
  const Heap::Deeper deeper(heap_);
  heap_.spend(1);
  switch (node.kind) {
    case NodeKind::none: return Value::none();
    case NodeKind::boolean: return Value::of(node.flag);
    case NodeKind::integer: return Value::of(node.number);
    case NodeKind::real: return Value::of(node.real);
    case NodeKind::text: return heap_.text(node.name);
    case NodeKind::variable: return variable(node, scope);
    case NodeKind::tuple:
    case NodeKind::list:
    case NodeKind::dict: return evaluate_container(node, scope);
    case NodeKind::attribute: {
      const Value object = evaluate(*node.parts[0], scope);
      at_ = node.at;
      return attribute(object, node.name);
    }
    case NodeKind::item: return evaluate_item(node, scope);
    case NodeKind::call: return evaluate_call(node, scope);
    case NodeKind::filter: return evaluate_filter(node, scope, nullptr);
    case NodeKind::test: return evaluate_test(node, scope);
    case NodeKind::negation: return Value::of(!truth(evaluate(*node.parts[0], scope)));
    case NodeKind::unary: {
      const Value operand = evaluate(*node.parts[0], scope);
      at_ = node.at;
      return unary(operand, node.name);
    }
    case NodeKind::binary: {
      const Value a = evaluate(*node.parts[0], scope);
      const Value b = evaluate(*node.parts[1], scope);
      at_ = node.at;
      return binary(heap_, a, b, node.name);
    }
    case NodeKind::concat: return evaluate_concat(node, scope);
    case NodeKind::compare: return evaluate_compare(node, scope);
    default: return evaluate_choice(node, scope);
  }
}

Value Evaluator::evaluate_choice(const Node& node, Scope& scope) {
  if (node.kind == NodeKind::both || node.kind == NodeKind::either) {
    Value value;
    for (const NodePointer& part : node.parts) {
      value = evaluate(*part, scope);
      if (truth(value) == (node.kind == NodeKind::either)) {
        return value;
      }
    }
    return value;
  }
  if (node.kind != NodeKind::choice) {
    at_ = node.at;
    fail("a slice stands here where only one value can");
  }
  if (truth(evaluate(*node.parts[0], scope))) {
    return evaluate(*node.parts[1], scope);
  }
  return node.parts[2] ? evaluate(*node.parts[2], scope)
                       : heap_.undefined("the condition of an if without else is false");
}

Value Evaluator::evaluate_container(const Node& node, Scope& scope) {
  std::vector<Value> values;
  for (const NodePointer& part : node.parts) {
    values.push_back(evaluate(*part, scope));
  }
  at_ = node.at;
  if (node.kind != NodeKind::dict) {
    return heap_.list(std::move(values), node.kind == NodeKind::list ? ListKind::list : ListKind::tuple);
  }
  Dict made;
  for (std::size_t i = 0; i < values.size(); i += 2) {
    set(heap_, made, values[i], values[i + 1]);
  }
  return heap_.dict(std::move(made));
}

Value Evaluator::evaluate_compare(const Node& node, Scope& scope) {
  Value left = evaluate(*node.parts[0], scope);
  for (std::size_t i = 0; i < node.names.size(); ++i) {
    const Value right = evaluate(*node.parts[i + 1], scope);
    const std::string& symbol = node.names[i];
    at_ = node.parts[i + 1]->at;
    const bool holds = symbol == "=="       ? equal(heap_, left, right)
                       : symbol == "!="     ? !equal(heap_, left, right)
                       : symbol == "in"     ? contains(heap_, right, left)
                       : symbol == "not in" ? !contains(heap_, right, left)
                       : symbol[0] == '<'   ? less(heap_, left, right, symbol == "<=", symbol)
                                            : less(heap_, right, left, symbol == ">=", symbol);
    if (!holds) {
      return Value::of(false);
    }
    left = right;
  }
  return Value::of(true);
}

Value Evaluator::evaluate_concat(const Node& node, Scope& scope) {
  std::vector<Value> values;
  for (const NodePointer& part : node.parts) {
    values.push_back(evaluate(*part, scope));
  }
  at_ = node.at;
  std::string text;
  for (const Value& value : values) {
    text += value.is(Kind::text) ? value.text->bytes : shown(heap_, value);
    heap_.check_text(text.size());
  }
  return heap_.text(text);
}

Value Evaluator::evaluate_item(const Node& node, Scope& scope) {
  const Value object = evaluate(*node.parts[0], scope);
  const Node& key = *node.parts[1];
  if (key.kind != NodeKind::slice) {
    const Value value = evaluate(key, scope);
    at_ = node.at;
    return item(object, value);
  }
  const auto part = [&](std::size_t i) { return key.parts[i] ? evaluate(*key.parts[i], scope) : Value::none(); };
  const Value from = part(0);
  const Value to = part(1);
  const Value step = part(2);
  at_ = node.at;
  return slice(heap_, object, from, to, step);
}

Arguments Evaluator::arguments(const Node& node, Scope& scope) {
  Arguments made;
  for (const Argument& argument : node.arguments) {
    const Value value = evaluate(*argument.value, scope);
    if (argument.kind == ArgumentKind::positional) {
      made.positional.push_back(value);
    } else if (argument.kind == ArgumentKind::named) {
      made.named.push_back({argument.name, value});
    } else if (argument.kind == ArgumentKind::all_positional) {
      const std::vector<Value> values = all_of(heap_, value);
      made.positional.insert(made.positional.end(), values.begin(), values.end());
    } else if (!value.is(Kind::dict)) {
      fail(fmt::format("** needs a dict, not {}", type_name(value)));
    } else {
      for (const auto& [key, named] : value.dict->entries) {
        made.named.push_back({std::string(text_of(heap_, key)), named});
      }
    }
  }
  heap_.spend(made.positional.size() / 8 + made.named.size());
  return made;
}

Value Evaluator::evaluate_call(const Node& node, Scope& scope) {
  const Value function = evaluate(*node.parts[0], scope);
  const Arguments given = arguments(node, scope);
  at_ = node.at;
  return call(function, given);
}

Value Evaluator::call(const Value& function, const Arguments& given) {
  const Heap::Deeper deeper(heap_);
  if (function.is(Kind::function)) {
    return function.function->call(given);
  }
  if (function.is(Kind::undefined)) {
    fail_undefined(function);
  }
  if (!function.is(Kind::loop)) {
    fail(fmt::format("{} cannot be called", type_name(function)));
  }
  const Bound bound("loop", given, {"iterable"}, 1);
  const Loop& loop = *function.loop;
  if (!loop.node->flag) {
    fail("only a for that is marked 'recursive' can be called by 'loop'");
  }
  std::string text;
  std::string* const outer = std::exchange(out_, &text);
  run_loop_over(*loop.node, *loop.outer, bound.at(0), loop.depth + 1);
  out_ = outer;
  return heap_.text(text);
}

Value Evaluator::evaluate_filter(const Node& node, Scope& scope, const Value* value) {
  const Value input = node.parts[0]      ? (value != nullptr && node.parts[0]->kind == NodeKind::filter
                                                ? evaluate_filter(*node.parts[0], scope, value)
                                                : evaluate(*node.parts[0], scope))
                      : value != nullptr ? *value
                                         : Value();
  const Arguments given = arguments(node, scope);
  at_ = node.at;
  heap_.spend(1);
  return filter(node.name, input, given);
}

Value Evaluator::evaluate_test(const Node& node, Scope& scope) {
  const Value value = evaluate(*node.parts[0], scope);
  const Arguments given = arguments(node, scope);
  at_ = node.at;
  return Value::of(test(node.name, value, given));
}

Value Evaluator::variable(const Node& node, const Scope& scope) {
  for (const Scope* at = &scope; at != nullptr; at = at->outer) {
    heap_.spend(at->variables.size() * (1 + node.name.size() / 64) / 16);
    for (const auto& [name, value] : at->variables) {
      if (name == node.name) {
        return value;
      }
    }
  }
  for (const auto& [name, value] : globals_) {
    if (name == node.name) {
      return value;
    }
  }
  if (node.name == "cycler" || node.name == "joiner" || node.name == "lipsum") {
    at_ = node.at;
    fail(fmt::format("the function '{}' is not supported", node.name));
  }
  return heap_.undefined(fmt::format("'{}' is undefined", node.name));
}

Value Evaluator::attribute(const Value& object, std::string_view name) {
  if (object.is(Kind::undefined)) {
    fail_undefined(object);
  }
  if (name.size() > 4 && name.starts_with("__") && name.ends_with("__")) {
    return heap_.undefined(fmt::format("access to attribute '{}' of '{}' object is unsafe.", name, type_name(object)));
  }
  if (object.is(Kind::loop)) {
    return loop_attribute(*object.loop, name);
  }
  if (const std::optional<Value> method = method_of(*this, object, name)) {
    return *method;
  }
  if (object.is(Kind::dict) || object.is(Kind::name_space)) {
    const Value key = heap_.text(name);
    if (const Value* const found = find(heap_, *object.dict, key)) {
      return *found;
    }
  }
  return heap_.undefined(no_attribute(object, name));
}

Value Evaluator::item(const Value& object, const Value& key) {
  if (object.is(Kind::undefined)) {
    fail_undefined(object);
  }
  if (object.is(Kind::dict)) {
    if (const bool is_hashable = !key.is(Kind::dict) && !is_list(key, ListKind::list); is_hashable) {
      if (const Value* const found = find(heap_, *object.dict, key)) {
        return *found;
      }
    }
  } else if (key.is_whole() &&
             (object.is(Kind::text) || (object.is(Kind::list) && object.list->kind <= ListKind::range))) {
    heap_.spend(object.is(Kind::text) ? object.text->bytes.size() / 32 : 0);
    const std::int64_t length = *length_of(object);
    const std::int64_t index = key.whole() < 0 ? key.whole() + length : key.whole();
    if (index >= 0 && index < length) {
      if (object.is(Kind::list)) {
        return object.list->items[static_cast<std::size_t>(index)];
      }
      const std::string_view rest =
          bytes_of(object).substr(offset_of(bytes_of(object), static_cast<std::size_t>(index)));
      return heap_.text(rest.substr(0, offset_of(rest.substr(0, 4), 1)), object.text->is_markup);
    }
  }
  if (key.is(Kind::text)) {
    if (object.is(Kind::dict)) {
      const std::optional<Value> method = method_of(*this, object, bytes_of(key));
      return method ? *method : heap_.undefined(no_attribute(object, bytes_of(key)));
    }
    return attribute(object, bytes_of(key));
  }
  return heap_.undefined(fmt::format("'{} object' has no element {}", type_name(object), represented(heap_, key)));
}

}  // namespace shardrun::templates
