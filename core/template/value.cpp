#include "core/template/value.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/json.hpp>
#include <cmath>

#include "core/base/error.h"
#include "core/template/text.h"

namespace shardrun::templates {

Value Value::none() noexcept {
  Value value;
  value.kind = Kind::none;
  return value;
}
Value Value::of(bool given) noexcept {
  Value value;
  value.kind = Kind::boolean;
  value.boolean = given;
  return value;
}
Value Value::of(std::int64_t given) noexcept {
  Value value;
  value.kind = Kind::integer;
  value.integer = given;
  return value;
}
Value Value::of(double given) noexcept {
  Value value;
  value.kind = Kind::real;
  value.real = given;
  return value;
}

// Heap ----------------------------------------------------------------------------------------------------------------

void Heap::spend(std::size_t steps) {
  steps_ += static_cast<std::int64_t>(steps);
  if (steps_ > limits_.steps) {
    fail(fmt::format("rendering takes more than {} steps", limits_.steps));
  }
}

void Heap::charge(std::size_t bytes) {
  bytes_ += bytes;
  if (bytes_ > limits_.bytes) {
    fail(fmt::format("rendering needs more than {} bytes", limits_.bytes));
  }
}

void Heap::check_text(std::size_t bytes) const {
  if (bytes > limits_.text_bytes) {
    fail(fmt::format("a text has more than {} bytes", limits_.text_bytes));
  }
}

Heap::Deeper::Deeper(Heap& heap) : heap_(heap) {
  if (++heap_.depth_ > heap_.limits_.depth) {
    fail(fmt::format("calls or values lie more than {} deep within each other", heap_.limits_.depth));
  }
}

Value Heap::text(std::string_view bytes, bool is_markup) {
  check_text(bytes.size());
  charge(bytes.size() + sizeof(Text));
  spend(1 + bytes.size() / 64);
  Value value;
  value.kind = Kind::text;
  value.text = &texts_.emplace_back(Text{std::string(bytes), is_markup});
  return value;
}

Value Heap::undefined(std::string why) {
  Value value = text(why);
  value.kind = Kind::undefined;
  return value;
}

Value Heap::list(std::vector<Value> items, ListKind kind) {
  charge(items.size() * sizeof(Value) + sizeof(List));
  spend(1 + items.size() / 8);
  Value value;
  value.kind = Kind::list;
  value.list = &lists_.emplace_back(List{kind, std::move(items)});
  return value;
}

Value Heap::iterator(Iterator next) {
  Value value = list({}, ListKind::iterator);
  charge(256);  // an estimate of the memory that the function captures
  value.list->next = std::move(next);
  return value;
}

Value Heap::dict(Dict dict, Kind kind) {
  charge(dict.entries.size() * 2 * sizeof(Value) + sizeof(Dict));
  spend(1 + dict.entries.size() / 8);
  Value value;
  value.kind = kind;
  value.dict = &dicts_.emplace_back(std::move(dict));
  return value;
}

Value Heap::function(std::string name, std::function<Value(const Arguments&)> call, bool is_macro) {
  charge(name.size() + sizeof(Function) + 64);
  spend(1);
  Value value;
  value.kind = Kind::function;
  value.function = &functions_.emplace_back(Function{std::move(name), std::move(call), is_macro});
  return value;
}

Value Heap::of_json(const boost::json::value& json) {
  const Deeper deeper(*this);
  if (const boost::json::object* const object = json.if_object()) {
    Dict made;
    for (const auto& [key, member] : *object) {
      made.entries.emplace_back(text(std::string_view(key)), of_json(member));
    }
    return dict(std::move(made));
  }
  if (const boost::json::array* const array = json.if_array()) {
    std::vector<Value> items;
    for (const boost::json::value& item : *array) {
      items.push_back(of_json(item));
    }
    return list(std::move(items));
  }
  if (json.is_string()) {
    return text(std::string_view(json.get_string()));
  }
  if (json.is_uint64()) {
    fail(fmt::format("the number {} has more than 63 bits, which is not supported", json.get_uint64()));
  }
  return json.is_null()    ? Value::none()
         : json.is_bool()  ? Value::of(json.get_bool())
         : json.is_int64() ? Value::of(json.get_int64())
                           : Value::of(json.get_double());
}

// What values are -----------------------------------------------------------------------------------------------------

void fail(const std::string& message) { throw Error(ErrorCode::data, message); }

void fail_undefined(const Value& value) { fail(value.text == nullptr ? "the value is undefined" : value.text->bytes); }

std::string_view type_name(const Value& value) {
  switch (value.kind) {
    case Kind::undefined: return "Undefined";
    case Kind::none: return "NoneType";
    case Kind::boolean: return "bool";
    case Kind::integer: return "int";
    case Kind::real: return "float";
    case Kind::text: return value.text->is_markup ? "Markup" : "str";
    case Kind::dict: return "dict";
    case Kind::name_space: return "namespace";
    case Kind::function: return value.function->is_macro ? "Macro" : "function";
    case Kind::loop: return "LoopContext";
    case Kind::list: break;
  }
  constexpr const char* names[] = {"list", "tuple", "range", "dict_keys", "dict_values", "dict_items", "generator"};
  return names[static_cast<std::size_t>(value.list->kind)];
}

bool is_list(const Value& value, ListKind kind) { return value.is(Kind::list) && value.list->kind == kind; }

bool truth(const Value& value) {
  switch (value.kind) {
    case Kind::undefined:
    case Kind::none: return false;
    case Kind::boolean: return value.boolean;
    case Kind::integer: return value.integer != 0;
    case Kind::real: return value.real != 0;
    case Kind::text: return !value.text->bytes.empty();
    case Kind::list: return value.list->kind == ListKind::iterator || !value.list->items.empty();
    case Kind::dict: return !value.dict->entries.empty();
    default: return true;
  }
}

std::optional<std::int64_t> length_of(const Value& value) {
  if (value.is(Kind::undefined)) {
    return 0;
  }
  if (value.is(Kind::text)) {
    return static_cast<std::int64_t>(count_characters(value.text->bytes));
  }
  if (value.is(Kind::dict)) {
    return static_cast<std::int64_t>(value.dict->entries.size());
  }
  if (value.is(Kind::list) && value.list->kind != ListKind::iterator) {
    return static_cast<std::int64_t>(value.list->items.size());
  }
  return std::nullopt;
}

// Comparing -----------------------------------------------------------------------------------------------------------

namespace {

/// -1, 0 or 1 as a <, == or > b; 2 if one is NaN. Exact, because a long double holds every 64-bit integer.
/// REQUIRES: both are numbers.
int order_of(const Value& a, const Value& b) {
  const auto exact = [](const Value& value) {
    return value.is(Kind::real) ? static_cast<long double>(value.real) : static_cast<long double>(value.whole());
  };
  const long double x = exact(a);
  const long double y = exact(b);
  return std::isnan(x) || std::isnan(y) ? 2 : x < y ? -1 : x > y ? 1 : 0;
}

bool is_ordered_list(const Value& value) { return is_list(value, ListKind::list) || is_list(value, ListKind::tuple); }

bool equal_items(Heap& heap, const std::vector<Value>& a, const std::vector<Value>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [&](const Value& x, const Value& y) { return equal(heap, x, y); });
}

}  // namespace

bool equal(Heap& heap, const Value& a, const Value& b) {
  heap.spend(1);
  if (a.is_number() && b.is_number()) {
    return order_of(a, b) == 0;
  }
  if (a.kind != b.kind) {
    return false;
  }
  const Heap::Deeper deeper(heap);
  switch (a.kind) {
    case Kind::text:
      heap.spend(a.text->bytes.size() == b.text->bytes.size() ? a.text->bytes.size() / 64 : 0);
      return a.text->bytes == b.text->bytes;
    case Kind::list:
      return a.list == b.list || (a.list->kind == b.list->kind && a.list->kind <= ListKind::range &&
                                  equal_items(heap, a.list->items, b.list->items));
    case Kind::dict:
      return a.dict == b.dict || (a.dict->entries.size() == b.dict->entries.size() &&
                                  std::ranges::all_of(a.dict->entries, [&](const std::pair<Value, Value>& entry) {
                                    const Value* const other = find(heap, *b.dict, entry.first);
                                    return other != nullptr && equal(heap, entry.second, *other);
                                  }));
    case Kind::name_space: return a.dict == b.dict;
    case Kind::function: return a.function == b.function;
    case Kind::loop: return a.loop == b.loop;
    default: return true;
  }
}

bool less(Heap& heap, const Value& a, const Value& b, bool or_equal, std::string_view symbol) {
  heap.spend(1);
  if (a.is(Kind::undefined) || b.is(Kind::undefined)) {
    fail_undefined(a.is(Kind::undefined) ? a : b);
  }
  if (a.is_number() && b.is_number()) {
    const int order = order_of(a, b);
    return order == -1 || (or_equal && order == 0);
  }
  if (a.is(Kind::text) && b.is(Kind::text)) {
    heap.spend(std::min(a.text->bytes.size(), b.text->bytes.size()) / 64);
    return or_equal ? a.text->bytes <= b.text->bytes : a.text->bytes < b.text->bytes;
  }
  if (is_ordered_list(a) && is_ordered_list(b) && a.list->kind == b.list->kind) {
    const Heap::Deeper deeper(heap);
    const std::vector<Value>& x = a.list->items;
    const std::vector<Value>& y = b.list->items;
    for (std::size_t i = 0; i < std::min(x.size(), y.size()); ++i) {
      if (!equal(heap, x[i], y[i])) {
        return less(heap, x[i], y[i], or_equal, symbol);
      }
    }
    return or_equal ? x.size() <= y.size() : x.size() < y.size();
  }
  fail(fmt::format("'{}' has no meaning between {} and {}", symbol, type_name(a), type_name(b)));
}

// Text of values ------------------------------------------------------------------------------------------------------

std::string shown_real(double value) {
  if (std::isnan(value)) {
    return "nan";
  }
  if (std::isinf(value)) {
    return value < 0 ? "-inf" : "inf";
  }
  const std::string text = fmt::format("{}", value);
  const std::string sign = std::signbit(value) ? "-" : "";
  std::string digits;
  int exponent = 0;
  const std::size_t e = text.find('e');
  const std::string mantissa = text.substr(0, e);
  if (e != std::string::npos) {
    exponent = std::stoi(text.substr(e + 1));
  }
  std::size_t point = std::string::npos;
  for (const char c : mantissa) {
    if (c == '.') {
      point = digits.size();
    } else if (c != '-') {
      digits += c;
    }
  }
  exponent += static_cast<int>(point == std::string::npos ? digits.size() : point);
  const std::size_t zeros = std::min(digits.find_first_not_of('0'), digits.size());
  digits.erase(0, zeros);
  exponent -= static_cast<int>(zeros);
  digits.erase(digits.find_last_not_of('0') + 1);
  if (digits.empty()) {
    return sign + "0.0";
  }
  // The number is 0.DIGITS * 10^exponent.
  if (exponent > 16 || exponent < -3) {
    const std::string rest = digits.size() > 1 ? "." + digits.substr(1) : "";
    return fmt::format("{}{}{}e{}{:02}", sign, digits[0], rest, exponent - 1 < 0 ? '-' : '+', std::abs(exponent - 1));
  }
  if (exponent <= 0) {
    return sign + "0." + std::string(static_cast<std::size_t>(-exponent), '0') + digits;
  }
  const auto whole = static_cast<std::size_t>(exponent);
  if (digits.size() <= whole) {
    return sign + digits + std::string(whole - digits.size(), '0') + ".0";
  }
  return sign + digits.substr(0, whole) + "." + digits.substr(whole);
}

namespace {

std::string represented_list(Heap& heap, const List& list) {
  if (list.kind == ListKind::range) {
    return fmt::format("range({}, {}{})", list.start, list.stop, list.step == 1 ? "" : fmt::format(", {}", list.step));
  }
  std::string text;
  for (const Value& item : list.items) {
    text += (text.empty() ? "" : ", ") + represented(heap, item);
    heap.check_text(text.size());
  }
  switch (list.kind) {
    case ListKind::list: return "[" + text + "]";
    case ListKind::tuple: return list.items.size() == 1 ? "(" + text + ",)" : "(" + text + ")";
    case ListKind::keys: return "dict_keys([" + text + "])";
    case ListKind::values: return "dict_values([" + text + "])";
    case ListKind::items: return "dict_items([" + text + "])";
    default: fail("what map, select and their like yield cannot be printed: use the filter list or join");
  }
}

std::string represented_dict(Heap& heap, const Dict& dict) {
  std::string text;
  for (const auto& [key, value] : dict.entries) {
    text += (text.empty() ? "" : ", ") + represented(heap, key);
    text += ": " + represented(heap, value);
    heap.check_text(text.size());
  }
  return "{" + text + "}";
}

}  // namespace

std::string represented(Heap& heap, const Value& value) {
  const Heap::Deeper deeper(heap);
  heap.spend(1);
  switch (value.kind) {
    case Kind::undefined: return "Undefined";
    case Kind::none: return "None";
    case Kind::boolean: return value.boolean ? "True" : "False";
    case Kind::integer: return std::to_string(value.integer);
    case Kind::real: return shown_real(value.real);
    case Kind::text: {
      const Heap::Temporary quoted(heap, value.text->bytes.size() * most_growth);
      heap.spend(value.text->bytes.size() / 16);
      return value.text->is_markup ? "Markup(" + quoted_text(value.text->bytes) + ")" : quoted_text(value.text->bytes);
    }
    case Kind::list: return represented_list(heap, *value.list);
    case Kind::dict: return represented_dict(heap, *value.dict);
    case Kind::name_space: return "<Namespace " + represented_dict(heap, *value.dict) + ">";
    case Kind::function:
      if (value.function->is_macro) {
        return fmt::format("<Macro {}>", quoted_text(value.function->name));
      }
      fail(fmt::format("the function '{}' cannot be printed: call it", value.function->name));
    case Kind::loop: fail("'loop' cannot be printed");
  }
  return "";
}

std::string shown(Heap& heap, const Value& value) {
  return value.is(Kind::text) ? value.text->bytes : value.is(Kind::undefined) ? "" : represented(heap, value);
}

std::string_view text_of(Heap& heap, const Value& value) {
  return value.is(Kind::text) ? bytes_of(value) : bytes_of(heap.text(shown(heap, value)));
}

// Containers ----------------------------------------------------------------------------------------------------------

Iterator iterate(Heap& heap, const Value& value) {
  switch (value.kind) {
    case Kind::undefined: return [] { return std::optional<Value>(); };
    case Kind::text:
      return [&heap, text = value.text, at = std::size_t{0}]() mutable -> std::optional<Value> {
        if (at == text->bytes.size()) {
          return std::nullopt;
        }
        const std::string_view rest = std::string_view(text->bytes).substr(at);
        const std::size_t bytes = offset_of(rest.substr(0, 4), 1);
        at += bytes;
        return heap.text(rest.substr(0, bytes));
      };
    case Kind::list:
      if (value.list->kind == ListKind::iterator) {
        return [&heap, list = value.list]() {
          const Heap::Deeper deeper(heap);
          heap.spend(1);
          return list->next();
        };
      }
      return [&heap, list = value.list, at = std::size_t{0}]() mutable -> std::optional<Value> {
        heap.spend(1);
        return at == list->items.size() ? std::optional<Value>() : list->items[at++];
      };
    case Kind::dict:
      return [&heap, dict = value.dict, at = std::size_t{0}]() mutable -> std::optional<Value> {
        heap.spend(1);
        return at == dict->entries.size() ? std::optional<Value>() : dict->entries[at++].first;
      };
    default: fail(fmt::format("{} has no elements to go through", type_name(value)));
  }
}

std::vector<Value> all_of(Heap& heap, const Value& value) {
  std::vector<Value> items;
  const Iterator next = iterate(heap, value);
  while (const std::optional<Value> item = next()) {
    heap.charge(sizeof(Value));
    items.push_back(*item);
  }
  return items;
}

namespace {

void require_key(Heap& heap, const Value& key) {
  const Heap::Deeper deeper(heap);
  heap.spend(1);
  if (key.is(Kind::dict) || is_list(key, ListKind::list) || is_list(key, ListKind::keys) ||
      is_list(key, ListKind::items)) {
    fail(fmt::format("{} cannot be the key of a dict", type_name(key)));
  }
  if (is_list(key, ListKind::tuple)) {
    std::ranges::for_each(key.list->items, [&](const Value& item) { require_key(heap, item); });
  }
}

}  // namespace

bool contains(Heap& heap, const Value& container, const Value& value) {
  if (container.is(Kind::text)) {
    if (value.is(Kind::undefined)) {
      fail_undefined(value);
    }
    if (!value.is(Kind::text)) {
      fail(fmt::format("'in' a text needs a text, not {}", type_name(value)));
    }
    heap.spend(1 + (container.text->bytes.size() + value.text->bytes.size()) / 32);
    return find_first(bytes_of(container), bytes_of(value)) != std::string_view::npos;
  }
  if (container.is(Kind::dict)) {
    return find(heap, *container.dict, value) != nullptr;
  }
  if (is_list(container, ListKind::keys)) {
    require_key(heap, value);
  }
  const Iterator next = iterate(heap, container);
  while (const std::optional<Value> item = next()) {
    if (equal(heap, *item, value)) {
      return true;
    }
  }
  return false;
}

Value* find(Heap& heap, Dict& dict, const Value& key) {
  require_key(heap, key);
  heap.spend(1 + dict.entries.size() / 8);
  const auto is_same_text = [&](const Value& known) {
    if (!known.is(Kind::text) || known.text->bytes.size() != key.text->bytes.size()) {
      return false;
    }
    heap.spend(key.text->bytes.size() / 64);
    return known.text->bytes == key.text->bytes;
  };
  for (auto& [known, value] : dict.entries) {
    if (key.is(Kind::text) ? is_same_text(known) : equal(heap, known, key)) {
      return &value;
    }
  }
  return nullptr;
}

void set(Heap& heap, Dict& dict, const Value& key, const Value& value) {
  if (Value* const found = find(heap, dict, key)) {
    *found = value;
  } else {
    heap.charge(2 * sizeof(Value));
    dict.entries.emplace_back(key, value);
  }
}

// Arguments -----------------------------------------------------------------------------------------------------------

Bound::Bound(std::string_view function, const Arguments& arguments, std::initializer_list<const char*> names,
             std::size_t required)
    : function_(function), names_(names.begin(), names.end()), values_(names.size()) {
  if (arguments.positional.size() > names.size()) {
    fail(fmt::format("{} takes at most {} arguments, not {}", function, names.size(), arguments.positional.size()));
  }
  std::ranges::copy(arguments.positional, values_.begin());
  for (const auto& [name, value] : arguments.named) {
    const auto found = std::ranges::find(names_, name);
    if (found == names_.end() || values_[static_cast<std::size_t>(found - names_.begin())]) {
      fail(fmt::format("{} {} '{}'", function, found == names_.end() ? "has no argument" : "has two values for", name));
    }
    values_[static_cast<std::size_t>(found - names_.begin())] = value;
  }
  for (std::size_t i = 0; i < required; ++i) {
    if (!values_[i]) {
      fail(fmt::format("{} lacks its argument '{}'", function, names_[i]));
    }
  }
}

void Bound::fail_type(std::size_t i, std::string_view expected) const {
  if (at(i).is(Kind::undefined)) {
    fail_undefined(at(i));
  }
  fail(fmt::format("{}: expected {} for '{}', found {}", function_, expected, names_[i], type_name(at(i))));
}

std::int64_t Bound::integer(std::size_t i, std::int64_t otherwise) const {
  if (!has(i)) {
    return otherwise;
  }
  if (!at(i).is_whole()) {
    fail_type(i, "a whole number");
  }
  return at(i).whole();
}

std::string_view Bound::text(std::size_t i) const {
  if (!at(i).is(Kind::text)) {
    fail_type(i, "a text");
  }
  return bytes_of(at(i));
}

}  // namespace shardrun::templates
