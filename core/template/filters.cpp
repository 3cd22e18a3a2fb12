// The filters of Jinja, such as `value | join(", ")`.

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "core/template/evaluator.h"
#include "core/template/text.h"

namespace shardrun::templates {
namespace {

/// Returns a text unchanged, with its mark if it is safe HTML. For other values, returns what Python's str() gives.
Value soft_text(Heap& heap, const Value& value) { return value.is(Kind::text) ? value : heap.text(shown(heap, value)); }

std::vector<Value> attribute_parts(Heap& heap, const Value& attribute) {
  if (attribute.is(Kind::none)) {
    return {};
  }
  if (!attribute.is(Kind::text)) {
    return {attribute};
  }
  std::vector<Value> parts;
  split_at(bytes_of(attribute), ".", -1, false, [&](std::string_view part) {
    std::int64_t number = 0;
    const auto [end, fault] = std::from_chars(part.data(), part.data() + part.size(), number);
    const bool is_number = fault == std::errc() && end == part.data() + part.size() && part[0] != '-';
    parts.push_back(is_number ? Value::of(number) : heap.text(part));
  });
  return parts;
}

/// The attribute of a value at a path that has been split into parts. For the path "a.0.b" it is value.a[0].b.
/// `otherwise`: the value to use for a missing part; null: undefined.
Value attribute_at(Evaluator& evaluator, Value value, const std::vector<Value>& parts,
                   const Value* otherwise = nullptr) {
  for (const Value& part : parts) {
    value = evaluator.item(value, part);
    if (otherwise != nullptr && !otherwise->is(Kind::none) && value.is(Kind::undefined)) {
      value = *otherwise;
    }
  }
  return value;
}

/// The key by which values are compared. It is the value's attribute, in lower case if case does not count.
Value key_of(Evaluator& evaluator, const Value& value, const std::vector<Value>& parts, bool is_case_sensitive) {
  const Value key = attribute_at(evaluator, value, parts);
  if (is_case_sensitive || !key.is(Kind::text)) {
    return key;
  }
  const Heap::Temporary made(evaluator.heap(), bytes_of(key).size() * most_growth);
  evaluator.heap().spend(bytes_of(key).size() / 8);
  return evaluator.heap().text(lower(bytes_of(key)));
}

// Numbers -------------------------------------------------------------------------------------------------------------

/// The text without underscores and without white space at its ends, as Python's int() and float() parse it. Nothing if
/// an underscore is not between two digits or letters.
std::optional<std::string> number_text(std::string_view text) {
  text = stripped(text, Side::both);
  std::string plain;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto is_alphanumeric = [&](std::size_t at) {
      return at < text.size() && std::isalnum(static_cast<unsigned char>(text[at])) != 0;
    };
    if (text[i] != '_') {
      plain += text[i];
    } else if (i == 0 || !is_alphanumeric(i - 1) || !is_alphanumeric(i + 1)) {
      return std::nullopt;
    }
  }
  return plain;
}

std::optional<std::int64_t> whole_of_text(std::string_view text, std::int64_t base) {
  const std::optional<std::string> plain = number_text(text);
  if (!plain) {
    return std::nullopt;
  }
  std::string_view digits = *plain;
  const bool is_negative = digits.starts_with('-');
  if (is_negative || digits.starts_with('+')) {
    digits.remove_prefix(1);
  }
  const char letter = digits.size() > 2 && digits[0] == '0' ? static_cast<char>(digits[1] | 0x20) : '\0';
  const std::int64_t prefix = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 0;
  if (prefix != 0 && (base == prefix || base == 0)) {
    digits.remove_prefix(2);
    base = prefix;
  }
  base = base == 0 ? 10 : base;
  if (base < 2 || base > 36) {
    fail("int: the base has to be 0, or 2 to 36");
  }
  std::uint64_t number = 0;
  const auto [end, fault] =
      std::from_chars(digits.data(), digits.data() + digits.size(), number, static_cast<int>(base));
  if (end != digits.data() + digits.size() || digits.empty()) {
    return std::nullopt;
  }
  if (fault != std::errc() || number > static_cast<std::uint64_t>(INT64_MAX)) {
    fail(fmt::format("the number {} has more than 64 bits, which is not supported", text.substr(0, 40)));
  }
  return is_negative ? -static_cast<std::int64_t>(number) : static_cast<std::int64_t>(number);
}

std::optional<double> real_of_text(std::string_view text) {
  const std::optional<std::string> plain = number_text(text);
  if (!plain || plain->empty()) {
    return std::nullopt;
  }
  std::string_view digits = *plain;
  const bool is_negative = digits.starts_with('-');
  if (is_negative || digits.starts_with('+')) {
    digits.remove_prefix(1);
  }
  const std::string small = lower(digits);
  double number = 0;
  if (small == "inf" || small == "infinity") {
    number = INFINITY;
  } else if (small == "nan") {
    number = NAN;
  } else {
    const char* const last = small.data() + small.size();
    const auto [end, fault] = std::from_chars(small.data(), last, number);
    if (end != last || small.empty() || small.find_first_not_of("0123456789.e+-") != std::string::npos ||
        small[0] == '-' || small[0] == '+') {
      return std::nullopt;
    }
    if (fault == std::errc::result_out_of_range) {
      number = std::strtod(small.c_str(), nullptr);
    }
  }
  return is_negative ? -number : number;
}

std::optional<double> real_of(const Value& value) {
  if (value.is(Kind::undefined)) {
    fail_undefined(value);
  }
  return value.is_number()      ? std::optional<double>(value.number())
         : value.is(Kind::text) ? real_of_text(bytes_of(value))
                                : std::nullopt;
}

/// Rounds towards zero. Returns nothing for NaN. Throws Error{data} for infinity and beyond 64 bits.
std::optional<std::int64_t> whole_of_real(double value) {
  if (std::isnan(value)) {
    return std::nullopt;
  }
  if (!(std::fabs(value) < 0x1p63)) {
    fail("int: the number is infinite or has more than 64 bits, which is not supported");
  }
  return static_cast<std::int64_t>(value);
}

Value to_whole(Evaluator& evaluator, const Value& value, const Arguments& arguments) {
  const Bound bound("int", arguments, {"default", "base"}, 0);
  evaluator.heap().spend(value.is(Kind::text) ? bytes_of(value).size() / 8 : 0);
  const Value otherwise = bound.has(0) ? bound.at(0) : Value::of(std::int64_t{0});
  std::optional<std::int64_t> number;
  if (value.is_whole()) {
    number = value.whole();
  } else if (value.is(Kind::text)) {
    number = whole_of_text(bytes_of(value), bound.integer(1, 10));
  }
  if (!number) {
    const std::optional<double> real = real_of(value);
    if (real && value.is(Kind::text) && std::isinf(*real)) {
      return otherwise;
    }
    number = real ? whole_of_real(*real) : std::nullopt;
  }
  return number ? Value::of(*number) : otherwise;
}

Value to_real(Evaluator& evaluator, const Value& value, const Arguments& arguments) {
  const Bound bound("float", arguments, {"default"}, 0);
  evaluator.heap().spend(value.is(Kind::text) ? bytes_of(value).size() / 8 : 0);
  const std::optional<double> number = real_of(value);
  return number ? Value::of(*number) : bound.has(0) ? bound.at(0) : Value::of(0.0);
}

Value absolute(Evaluator& /*evaluator*/, const Value& value, const Arguments& arguments) {
  const Bound bound("abs", arguments, {}, 0);
  if (value.is(Kind::real)) {
    return Value::of(std::fabs(value.real));
  }
  return value.is_whole() && value.whole() >= 0 ? Value::of(value.whole()) : unary(value, "-");
}

Value rounded(Evaluator& evaluator, const Value& value, const Arguments& arguments) {
  const Bound bound("round", arguments, {"precision", "method"}, 0);
  const std::int64_t precision = bound.integer(0, 0);
  const std::string_view method = bound.has(1) ? bound.text(1) : "common";
  if (value.is(Kind::undefined)) {
    fail_undefined(value);
  }
  if (!value.is_number() || precision < -30 || precision > 300) {
    fail(fmt::format("round: cannot round {} to {} digits", type_name(value), precision));
  }
  if (method == "common" && value.is_whole() && precision >= 0) {
    return Value::of(value.whole());
  }
  if (method == "common" && precision >= 0) {
    return Value::of(std::isfinite(value.real)
                         ? std::strtod(fmt::format("{:.{}f}", value.real, precision).c_str(), nullptr)
                         : value.real);
  }
  if (method == "common") {
    const long double unit = std::pow(10.0L, static_cast<long double>(-precision));
    const long double units = std::nearbyint(static_cast<long double>(value.is_whole() ? value.whole() : 0) / unit);
    if (!value.is_whole()) {
      return Value::of(static_cast<double>(std::nearbyint(static_cast<long double>(value.real) / unit) * unit));
    }
    if (!(std::fabs(units * unit) < 0x1p63L)) {
      fail("round: the result has more than 64 bits, which is not supported");
    }
    return Value::of(static_cast<std::int64_t>(units * unit));
  }
  if (method != "ceil" && method != "floor") {
    fail(fmt::format("round: expected the method common, ceil or floor, found '{}'", method));
  }
  const Value ten = Value::of(std::int64_t{10});
  const Value power = binary(evaluator.heap(), ten, Value::of(precision), "**");
  const double scaled = binary(evaluator.heap(), value, power, "*").number();
  const std::optional<std::int64_t> whole = whole_of_real(method == "ceil" ? std::ceil(scaled) : std::floor(scaled));
  if (!whole) {
    fail("round: the value is no number");
  }
  return binary(evaluator.heap(), Value::of(*whole), power, "/");
}

// Texts ---------------------------------------------------------------------------------------------------------------

template <std::string (*Change)(std::string_view)>
Value changed_text(Evaluator& evaluator, const Value& value, const Arguments& arguments) {
  const Bound bound("this filter", arguments, {}, 0);
  const Value text = soft_text(evaluator.heap(), value);
  const Heap::Temporary made(evaluator.heap(), bytes_of(text).size() * most_growth);
  evaluator.heap().spend(bytes_of(text).size() / 8);
  return evaluator.heap().text(Change(bytes_of(text)), text.text->is_markup);
}

/// Capitalizes as Jinja's filter `title` does: a word begins after white space, a hyphen or an opening bracket.
std::string title_by_marks(std::string_view text) {
  std::string result;
  const auto ends_word = [](std::string_view c) {
    return (c.size() == 1 && std::string_view("-({[<").find(c[0]) != std::string_view::npos) ||
           !stripped(c, Side::left).size();
  };
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t first = offset_of(text.substr(at), 1);
    std::size_t end = at + first;
    if (ends_word(text.substr(at, first))) {
      result += text.substr(at, first);
      at = end;
      continue;
    }
    while (end < text.size()) {
      const std::size_t next = offset_of(text.substr(end), 1);
      if (ends_word(text.substr(end, next))) {
        break;
      }
      end += next;
    }
    result += upper(text.substr(at, first)) + lower(text.substr(at + first, end - at - first));
    at = end;
  }
  return result;
}

Value trimmed(Evaluator& evaluator, const Value& value, const Arguments& arguments) {
  const Bound bound("trim", arguments, {"chars"}, 0);
  const Value text = soft_text(evaluator.heap(), value);
  const bool has_set = !bound.or_none(0).is(Kind::none);
  evaluator.heap().spend((bytes_of(text).size() + (has_set ? bound.text(0).size() : 0)) / 32);
  return evaluator.heap().text(
      stripped(bytes_of(text), Side::both, has_set ? std::optional<std::string_view>(bound.text(0)) : std::nullopt),
      text.text->is_markup);
}

Value replaced_text(Evaluator& evaluator, const Value& value, const Arguments& arguments) {
  const Bound bound("replace", arguments, {"old", "new", "count"}, 2);
  Heap& heap = evaluator.heap();
  const std::string_view text = text_of(heap, value);
  const std::string_view from = text_of(heap, bound.at(0));
  heap.spend((text.size() + from.size()) / 8);
  const std::int64_t most = bound.or_none(2).is(Kind::none) ? -1 : bound.integer(2, -1);
  return heap.text(replaced(text, from, text_of(heap, bound.at(1)), most, heap.limits().text_bytes));
}

Value indented(Evaluator& evaluator, const Value& value, const Arguments& arguments) {
  const Bound bound("indent", arguments, {"width", "first", "blank"}, 0);
  Heap& heap = evaluator.heap();
  if (!value.is(Kind::text)) {
    fail(fmt::format("indent needs a text, not {}", type_name(value)));
  }
  std::string indent(4, ' ');
  if (bound.has(0)) {
    const bool is_text = bound.at(0).is(Kind::text);
    const std::int64_t width = is_text ? 0 : std::max<std::int64_t>(bound.integer(0, 4), 0);
    heap.check_text(static_cast<std::size_t>(width));
    indent = is_text ? std::string(bytes_of(bound.at(0))) : std::string(static_cast<std::size_t>(width), ' ');
  }
  const std::string whole = value.text->bytes + "\n";
  heap.spend(whole.size() / 8);
  std::string text = bound.flag(1, false) ? indent : "";
  bool is_first = true;
  each_line(whole, false, [&](std::string_view line) {
    if (!is_first) {
      text += '\n';
      text += bound.flag(2, false) || !line.empty() ? indent : "";
    }
    text += line;
    is_first = false;
    heap.check_text(text.size());
  });
  return heap.text(text, value.text->is_markup);
}

Value centered(Evaluator& evaluator, const Value& value, const Arguments& arguments) {
  const Bound bound("center", arguments, {"width"}, 0);
  const Value text = soft_text(evaluator.heap(), value);
  const Value center = *method_of(evaluator, text, "center");
  return center.function->call({{Value::of(bound.integer(0, 80))}, {}});
}

Value formatted(Evaluator& evaluator, const Value& value, const Arguments& arguments) {
  Heap& heap = evaluator.heap();
  if (!arguments.positional.empty() && !arguments.named.empty()) {
    fail("format takes values or names with values, not both");
  }
  Dict named;
  for (const auto& [name, given] : arguments.named) {
    set(heap, named, heap.text(name), given);
  }
  return binary(heap, soft_text(heap, value),
                named.entries.empty() ? heap.list(arguments.positional, ListKind::tuple) : heap.dict(std::move(named)),
                "%");
}

// Lists ---------------------------------------------------------------------------------------------------------------

Value joined_texts(Evaluator& evaluator, const Value& value, const Arguments& arguments) {
  const Bound bound("join", arguments, {"d", "attribute"}, 0);
  Heap& heap = evaluator.heap();
  const std::vector<Value> parts = attribute_parts(heap, bound.or_none(1));
  const std::string_view between = bound.has(0) ? text_of(heap, bound.at(0)) : "";
  std::string text;
  bool is_first = true;
  const Iterator next = iterate(heap, value);
  while (const std::optional<Value> item = next()) {
    text += is_first ? "" : between;
    text += text_of(heap, attribute_at(evaluator, *item, parts));
    is_first = false;
    heap.check_text(text.size());
  }
  return heap.text(text);
}

Value length(Evaluator& evaluator, const Value& value, const Arguments& arguments) {
  const Bound bound("length", arguments, {}, 0);
  evaluator.heap().spend(value.is(Kind::text) ? bytes_of(value).size() / 64 : 0);
  if (value.is(Kind::loop)) {
    return evaluator.attribute(value, "length");
  }
  const std::optional<std::int64_t> found = length_of(value);
  if (!found) {
    fail(fmt::format("{} has no length", type_name(value)));
  }
  return Value::of(*found);
}

Value first_of(Evaluator& evaluator, const Value& value, const Arguments& arguments) {
  const Bound bound("first", arguments, {}, 0);
  const std::optional<Value> found = iterate(evaluator.heap(), value)();
  return found ? *found : evaluator.heap().undefined("No first item, sequence was empty.");
}

std::vector<Value> reversible(Evaluator& evaluator, const Value& value, std::string_view filter) {
  if (is_list(value, ListKind::iterator)) {
    fail(fmt::format("{}: {} cannot be read from its end: use the filter list", filter, type_name(value)));
  }
  return all_of(evaluator.heap(), value);
}

Value last_of(Evaluator& evaluator, const Value& value, const Arguments& arguments) {
  const Bound bound("last", arguments, {}, 0);
  const std::vector<Value> all = reversible(evaluator, value, "last");
  return !all.empty() ? all.back() : evaluator.heap().undefined("No last item, sequence was empty.");
}

/// An iterator over these values.
Value yielded(Heap& heap, std::vector<Value> values) {
  return heap.iterator(iterate(heap, heap.list(std::move(values))));
}

Value reversed(Evaluator& evaluator, const Value& value, const Arguments& arguments) {
  const Bound bound("reverse", arguments, {}, 0);
  std::vector<Value> all = all_of(evaluator.heap(), value);
  std::ranges::reverse(all);
  if (!value.is(Kind::text)) {
    return is_list(value, ListKind::iterator) ? evaluator.heap().list(std::move(all))
                                              : yielded(evaluator.heap(), std::move(all));
  }
  std::string text;
  for (const Value& character : all) {
    text += bytes_of(character);
  }
  return evaluator.heap().text(text, value.text->is_markup);
}

/// Sorts pairs by their first values and returns a list of the second values. Equal pairs keep their order.
Value sorted_items(Heap& heap, std::vector<std::pair<Value, Value>> keyed, bool is_reversed) {
  std::ranges::stable_sort(keyed, [&](const auto& a, const auto& b) {
    return is_reversed ? less(heap, b.first, a.first, false, "<") : less(heap, a.first, b.first, false, "<");
  });
  std::vector<Value> items;
  for (const auto& [key, item] : keyed) {
    items.push_back(item);
  }
  return heap.list(std::move(items));
}

Value sorted(Evaluator& evaluator, const Value& value, const Arguments& arguments) {
  const Bound bound("sort", arguments, {"reverse", "case_sensitive", "attribute"}, 0);
  Heap& heap = evaluator.heap();
  std::vector<std::vector<Value>> attributes;
  const Value attribute = bound.or_none(2);
  if (attribute.is(Kind::text)) {
    split_at(bytes_of(attribute), ",", -1, false,
             [&](std::string_view one) { attributes.push_back(attribute_parts(heap, heap.text(one))); });
  } else {
    attributes.push_back(attribute_parts(heap, attribute));
  }
  std::vector<std::pair<Value, Value>> keyed;
  for (const Value& item : all_of(heap, value)) {
    std::vector<Value> keys;
    for (const std::vector<Value>& parts : attributes) {
      keys.push_back(key_of(evaluator, item, parts, bound.flag(1, false)));
    }
    keyed.emplace_back(heap.list(std::move(keys)), item);
  }
  return sorted_items(heap, std::move(keyed), bound.flag(0, false));
}

Value sorted_dict(Evaluator& evaluator, const Value& value, const Arguments& arguments) {
  const Bound bound("dictsort", arguments, {"case_sensitive", "by", "reverse"}, 0);
  Heap& heap = evaluator.heap();
  const std::string_view by = bound.has(1) ? bound.text(1) : "key";
  if (!value.is(Kind::dict) || (by != "key" && by != "value")) {
    fail(fmt::format("dictsort: expected a dict, and by key or value; found {} by {}", type_name(value), by));
  }
  std::vector<std::pair<Value, Value>> keyed;
  for (const auto& [key, entry] : value.dict->entries) {
    keyed.emplace_back(key_of(evaluator, by == "key" ? key : entry, {}, bound.flag(0, false)),
                       heap.list({key, entry}, ListKind::tuple));
  }
  return sorted_items(heap, std::move(keyed), bound.flag(2, false));
}

Value unique_of(Evaluator& evaluator, const Value& value, const Arguments& arguments) {
  const Bound bound("unique", arguments, {"case_sensitive", "attribute"}, 0);
  Heap& heap = evaluator.heap();
  const std::vector<Value> parts = attribute_parts(heap, bound.or_none(1));
  Dict seen;
  std::vector<Value> items;
  for (const Value& item : all_of(heap, value)) {
    const Value key = key_of(evaluator, item, parts, bound.flag(0, false));
    if (find(heap, seen, key) == nullptr) {
      seen.entries.emplace_back(key, Value::none());
      items.push_back(item);
    }
  }
  return yielded(heap, std::move(items));
}

template <bool Largest>
Value extreme(Evaluator& evaluator, const Value& value, const Arguments& arguments) {
  const Bound bound("min", arguments, {"case_sensitive", "attribute"}, 0);
  Heap& heap = evaluator.heap();
  const std::vector<Value> parts = attribute_parts(heap, bound.or_none(1));
  std::optional<std::pair<Value, Value>> best;
  for (const Value& item : all_of(heap, value)) {
    const Value key = key_of(evaluator, item, parts, bound.flag(0, false));
    if (!best || (Largest ? less(heap, best->first, key, false, ">") : less(heap, key, best->first, false, "<"))) {
      best = {key, item};
    }
  }
  return best ? best->second : heap.undefined("No aggregated item, sequence was empty.");
}

Value sum_of(Evaluator& evaluator, const Value& value, const Arguments& arguments) {
  const Bound bound("sum", arguments, {"attribute", "start"}, 0);
  Heap& heap = evaluator.heap();
  const std::vector<Value> parts = attribute_parts(heap, bound.or_none(0));
  Value total = bound.has(1) ? bound.at(1) : Value::of(std::int64_t{0});
  if (total.is(Kind::text)) {
    fail("sum adds no texts: use the filter join");
  }
  const Iterator next = iterate(heap, value);
  while (const std::optional<Value> item = next()) {
    total = binary(heap, total, attribute_at(evaluator, *item, parts), "+");
  }
  return total;
}

Value mapped(Evaluator& evaluator, const Value& value, const Arguments& arguments) {
  Heap& heap = evaluator.heap();
  if (!truth(value)) {
    return yielded(heap, {});
  }
  const Iterator next = iterate(heap, value);
  const auto named = std::ranges::find(arguments.named, "attribute", &NamedValue::name);
  if (arguments.positional.empty() && named != arguments.named.end()) {
    const Bound bound("map", arguments, {"attribute", "default"}, 1);
    return heap.iterator([&evaluator, next, parts = attribute_parts(heap, bound.at(0)),
                          otherwise = bound.or_none(1)]() -> std::optional<Value> {
      const std::optional<Value> item = next();
      return item ? attribute_at(evaluator, *item, parts, &otherwise) : item;
    });
  }
  if (arguments.positional.empty() || !arguments.positional[0].is(Kind::text)) {
    fail("map needs the name of a filter, or attribute=NAME");
  }
  Arguments rest{{arguments.positional.begin() + 1, arguments.positional.end()}, arguments.named};
  return heap.iterator([&evaluator, next, rest, filter = bytes_of(arguments.positional[0])]() -> std::optional<Value> {
    const std::optional<Value> item = next();
    return item ? evaluator.filter(filter, *item, rest) : item;
  });
}

/// Implements select, reject, selectattr and rejectattr: yields the elements for which a test is `Wanted`. Without a
/// test, an element's truth counts.
template <bool Wanted, bool OfAttribute>
Value selected(Evaluator& evaluator, const Value& value, const Arguments& arguments) {
  Heap& heap = evaluator.heap();
  if (!truth(value)) {
    return yielded(heap, {});
  }
  constexpr std::size_t first = OfAttribute ? 1 : 0;
  const std::vector<Value>& given = arguments.positional;
  if (given.size() < first) {
    fail("selectattr and rejectattr need the name of an attribute");
  }
  const bool has_test = given.size() > first;
  if (has_test && !given[first].is(Kind::text)) {
    fail("expected the name of a test");
  }
  std::vector<Value> parts = OfAttribute ? attribute_parts(heap, given[0]) : std::vector<Value>();
  Arguments rest;
  if (has_test) {
    rest = {{given.begin() + first + 1, given.end()}, arguments.named};
  }
  return heap.iterator([&evaluator, next = iterate(heap, value), parts, rest,
                        test = has_test ? bytes_of(given[first]) : std::string_view()]() -> std::optional<Value> {
    while (const std::optional<Value> item = next()) {
      const Value tried = attribute_at(evaluator, *item, parts);
      if ((test.empty() ? truth(tried) : evaluator.test(test, tried, rest)) == Wanted) {
        return item;
      }
    }
    return std::nullopt;
  });
}

Value batches(Evaluator& evaluator, const Value& value, const Arguments& arguments) {
  const Bound bound("batch", arguments, {"linecount", "fill_with"}, 1);
  Heap& heap = evaluator.heap();
  const std::int64_t size = bound.integer(0, 1);
  std::vector<Value> all;
  std::vector<Value> batch;
  for (const Value& item : all_of(heap, value)) {
    if (static_cast<std::int64_t>(batch.size()) == size) {
      all.push_back(heap.list(std::exchange(batch, {})));
    }
    batch.push_back(item);
  }
  if (!batch.empty()) {
    while (!bound.or_none(1).is(Kind::none) && static_cast<std::int64_t>(batch.size()) < size) {
      heap.charge(sizeof(Value));
      batch.push_back(bound.at(1));
    }
    all.push_back(heap.list(std::move(batch)));
  }
  return yielded(heap, std::move(all));
}

Value slices(Evaluator& evaluator, const Value& value, const Arguments& arguments) {
  const Bound bound("slice", arguments, {"slices", "fill_with"}, 1);
  Heap& heap = evaluator.heap();
  const std::vector<Value> items = all_of(heap, value);
  const std::int64_t count = bound.integer(0, 1);
  if (count == 0) {
    fail("slice: division by zero");
  }
  const auto size = static_cast<std::int64_t>(items.size());
  std::vector<Value> all;
  std::int64_t at = 0;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::int64_t taken = size / count + (i < size % count ? 1 : 0);
    std::vector<Value> part(items.begin() + at, items.begin() + at + taken);
    if (!bound.or_none(1).is(Kind::none) && i >= size % count) {
      part.push_back(bound.at(1));
    }
    all.push_back(heap.list(std::move(part)));
    at += taken;
  }
  return yielded(heap, std::move(all));
}

Value items_of(Evaluator& evaluator, const Value& value, const Arguments& arguments) {
  const Bound bound("items", arguments, {}, 0);
  Heap& heap = evaluator.heap();
  if (value.is(Kind::undefined)) {
    return yielded(heap, {});
  }
  if (!value.is(Kind::dict)) {
    fail(fmt::format("items needs a dict, not {}", type_name(value)));
  }
  return heap.iterator(iterate(heap, method_of(evaluator, value, "items")->function->call({})));
}

Value or_default(Evaluator& evaluator, const Value& value, const Arguments& arguments) {
  const Bound bound("default", arguments, {"default_value", "boolean"}, 0);
  const bool is_replaced = value.is(Kind::undefined) || (bound.flag(1, false) && !truth(value));
  return !is_replaced ? value : bound.has(0) ? bound.at(0) : evaluator.heap().text("");
}

Value escaped_text(Evaluator& evaluator, const Value& value, const Arguments& arguments) {
  const Bound bound("escape", arguments, {}, 0);
  Heap& heap = evaluator.heap();
  const Value text = soft_text(heap, value);
  const Heap::Temporary made(heap, bytes_of(text).size() * most_growth);
  heap.spend(bytes_of(text).size() / 16);
  return text.text->is_markup ? text : heap.text(escaped(bytes_of(text)), true);
}

Value attribute_alone(Evaluator& evaluator, const Value& value, const Arguments& arguments) {
  const Bound bound("attr", arguments, {"name"}, 1);
  if (value.is(Kind::dict)) {
    const std::optional<Value> method = method_of(evaluator, value, bound.text(0));
    return method ? *method
                  : evaluator.heap().undefined(fmt::format("'dict object' has no attribute '{}'", bound.text(0)));
  }
  return evaluator.attribute(value, bound.text(0));
}

constexpr Named<Value> filters[] = {
    {"abs", absolute},
    {"attr", attribute_alone},
    {"batch", batches},
    {"capitalize", changed_text<capitalized>},
    {"center", centered},
    {"count", length},
    {"d", or_default},
    {"default", or_default},
    {"dictsort", sorted_dict},
    {"e", escaped_text},
    {"escape", escaped_text},
    {"first", first_of},
    {"float", to_real},
    {"format", formatted},
    {"indent", indented},
    {"int", to_whole},
    {"items", items_of},
    {"join", joined_texts},
    {"last", last_of},
    {"length", length},
    {"list",
     [](Evaluator& evaluator, const Value& value, const Arguments& arguments) {
       const Bound bound("list", arguments, {}, 0);
       return evaluator.heap().list(all_of(evaluator.heap(), value));
     }},
    {"lower", changed_text<lower>},
    {"map", mapped},
    {"max", extreme<true>},
    {"min", extreme<false>},
    {"reject", selected<false, false>},
    {"rejectattr", selected<false, true>},
    {"replace", replaced_text},
    {"reverse", reversed},
    {"round", rounded},
    {"safe",
     [](Evaluator& evaluator, const Value& value, const Arguments& arguments) {
       const Bound bound("safe", arguments, {}, 0);
       return evaluator.heap().text(text_of(evaluator.heap(), value), true);
     }},
    {"select", selected<true, false>},
    {"selectattr", selected<true, true>},
    {"slice", slices},
    {"sort", sorted},
    {"string",
     [](Evaluator& evaluator, const Value& value, const Arguments& arguments) {
       const Bound bound("string", arguments, {}, 0);
       return soft_text(evaluator.heap(), value);
     }},
    {"sum", sum_of},
    {"title", changed_text<title_by_marks>},
    {"tojson",
     [](Evaluator& evaluator, const Value& value, const Arguments& arguments) {
       return evaluator.heap().text(to_json(evaluator.heap(), value, arguments));
     }},
    {"trim", trimmed},
    {"unique", unique_of},
    {"upper", changed_text<upper>},
};

}  // namespace

Value Evaluator::filter(std::string_view name, const Value& value, const Arguments& given) {
  const auto found = std::ranges::find(filters, name, &Named<Value>::name);
  if (found == std::end(filters)) {
    fail(fmt::format("the filter '{}' is not known", name));
  }
  const Heap::Deeper deeper(heap_);
  return found->run(*this, value, given);
}

}  // namespace shardrun::templates
