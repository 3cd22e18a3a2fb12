#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/template/evaluator.h"
#include "core/template/text.h"

namespace shardrun::templates {
namespace {

[[noreturn]] void fail_operands(const Value& a, const Value& b, std::string_view symbol) {
  if (a.is(Kind::undefined) || b.is(Kind::undefined)) {
    fail_undefined(a.is(Kind::undefined) ? a : b);
  }
  fail(fmt::format("'{}' has no meaning between {} and {}", symbol, type_name(a), type_name(b)));
}

[[noreturn]] void fail_overflow() { fail("a number has more than 64 bits, which is not supported"); }

std::int64_t floor_div(std::int64_t a, std::int64_t b) {
  if (b == -1) {
    std::int64_t result = 0;
    if (__builtin_sub_overflow(std::int64_t{0}, a, &result)) {
      fail_overflow();
    }
    return result;
  }
  const std::int64_t quotient = a / b;
  return quotient - (a % b != 0 && (a < 0) != (b < 0) ? 1 : 0);
}

double floor_mod(double a, double b) {
  double rest = std::fmod(a, b);
  if (rest != 0 && (rest < 0) != (b < 0)) {
    rest += b;
  }
  return rest == 0 ? std::copysign(0.0, b) : rest;
}

Value power_of_wholes(std::int64_t base, std::int64_t exponent) {
  if (exponent < 0) {
    if (base == 0) {
      fail("0 cannot be raised to a negative power");
    }
    return Value::of(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  }
  std::int64_t result = 1;
  for (; exponent > 0 && !(base == 1 || base == 0 || base == -1); --exponent) {
    if (__builtin_mul_overflow(result, base, &result)) {
      fail_overflow();
    }
  }
  return Value::of(exponent == 0 || base == 1 ? result
                   : base == 0                ? std::int64_t{0}
                   : exponent % 2 == 0        ? std::int64_t{1}
                                              : std::int64_t{-1});
}

Value of_wholes(std::int64_t a, std::int64_t b, std::string_view symbol) {
  std::int64_t result = 0;
  if (symbol == "+" || symbol == "-" || symbol == "*") {
    const bool overflows = symbol == "+"   ? __builtin_add_overflow(a, b, &result)
                           : symbol == "-" ? __builtin_sub_overflow(a, b, &result)
                                           : __builtin_mul_overflow(a, b, &result);
    if (overflows) {
      fail_overflow();
    }
    return Value::of(result);
  }
  if (symbol == "**") {
    return power_of_wholes(a, b);
  }
  if (b == 0) {
    fail("division by zero");
  }
  if (symbol == "/") {
    return Value::of(static_cast<double>(static_cast<long double>(a) / static_cast<long double>(b)));
  }
  if (symbol == "//") {
    return Value::of(floor_div(a, b));
  }
  const std::int64_t rest = b == -1 ? 0 : a % b;
  return Value::of(rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest);
}

Value of_reals(double a, double b, std::string_view symbol) {
  if (symbol == "+" || symbol == "-" || symbol == "*") {
    return Value::of(symbol == "+" ? a + b : symbol == "-" ? a - b : a * b);
  }
  if (symbol == "**") {
    const double result = std::pow(a, b);
    if ((a == 0 && b < 0) || (std::isnan(result) && !std::isnan(a) && !std::isnan(b)) ||
        (std::isinf(result) && !std::isinf(a) && !std::isinf(b))) {
      fail("the result of '**' is infinite or complex, which is not supported");
    }
    return Value::of(result);
  }
  if (b == 0) {
    fail("division by zero");
  }
  if (symbol == "/") {
    return Value::of(a / b);
  }
  const double rest = floor_mod(a, b);
  if (symbol == "%") {
    return Value::of(rest);
  }
  // As in CPython, the result is the nearest whole number, because the quotient differs from one only by rounding.
  const double quotient = (a - rest) / b;
  const double whole = std::floor(quotient);
  return Value::of(quotient == 0 ? std::copysign(0.0, a / b) : quotient - whole > 0.5 ? whole + 1 : whole);
}

Value repeated(Heap& heap, const Value& what, std::int64_t times) {
  const std::int64_t count = std::max<std::int64_t>(times, 0);
  if (what.is(Kind::text)) {
    const std::string& bytes = what.text->bytes;
    if (bytes.empty()) {
      return what;
    }
    if (count > static_cast<std::int64_t>(heap.limits().text_bytes)) {
      heap.check_text(SIZE_MAX);
    }
    heap.check_text(bytes.size() * static_cast<std::size_t>(count));
    std::string text;
    for (std::int64_t i = 0; i < count; ++i) {
      text += bytes;
    }
    return heap.text(text, what.text->is_markup);
  }
  std::vector<Value> items;
  for (std::int64_t i = 0; i < count && !what.list->items.empty(); ++i) {
    heap.charge(what.list->items.size() * sizeof(Value));
    items.insert(items.end(), what.list->items.begin(), what.list->items.end());
  }
  return heap.list(std::move(items), what.list->kind);
}

bool can_repeat(const Value& value) {
  return value.is(Kind::text) || is_list(value, ListKind::list) || is_list(value, ListKind::tuple);
}

Value added(Heap& heap, const Value& a, const Value& b) {
  if (a.is(Kind::text) && b.is(Kind::text)) {
    const bool is_markup = a.text->is_markup || b.text->is_markup;
    const Heap::Temporary made(heap, is_markup ? (a.text->bytes.size() + b.text->bytes.size()) * most_growth : 0);
    const auto part = [&](const Value& text) {
      return is_markup && !text.text->is_markup ? escaped(bytes_of(text)) : text.text->bytes;
    };
    return heap.text(part(a) + part(b), is_markup);
  }
  if (a.is(Kind::list) && b.is(Kind::list) && a.list->kind == b.list->kind && a.list->kind <= ListKind::tuple) {
    heap.charge(a.list->items.size() * sizeof(Value));
    std::vector<Value> items = a.list->items;
    items.insert(items.end(), b.list->items.begin(), b.list->items.end());
    return heap.list(std::move(items), a.list->kind);
  }
  fail_operands(a, b, "+");
}

}  // namespace

std::string escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    switch (c) {
      case '&': result += "&amp;"; break;
      case '<': result += "&lt;"; break;
      case '>': result += "&gt;"; break;
      case '\'': result += "&#39;"; break;
      case '"': result += "&#34;"; break;
      default: result += c;
    }
  }
  return result;
}

Value unary(const Value& operand, std::string_view symbol) {
  if (operand.is_whole()) {
    return symbol == "+" ? Value::of(operand.whole()) : of_wholes(0, operand.whole(), "-");
  }
  if (operand.is(Kind::real)) {
    return Value::of(symbol == "+" ? operand.real : -operand.real);
  }
  if (operand.is(Kind::undefined)) {
    fail_undefined(operand);
  }
  fail(fmt::format("'{}' has no meaning before {}", symbol, type_name(operand)));
}

Value binary(Heap& heap, const Value& a, const Value& b, std::string_view symbol) {
  if (a.is_whole() && b.is_whole()) {
    return of_wholes(a.whole(), b.whole(), symbol);
  }
  if (a.is_number() && b.is_number()) {
    return of_reals(a.number(), b.number(), symbol);
  }
  if (symbol == "+") {
    return added(heap, a, b);
  }
  if (symbol == "%" && a.is(Kind::text)) {
    if (a.text->is_markup) {
      fail("'%' of a text that is marked as safe is not supported");
    }
    return heap.text(formatted_by_percent(heap, bytes_of(a), b));
  }
  if (symbol == "*" && ((can_repeat(a) && b.is_whole()) || (a.is_whole() && can_repeat(b)))) {
    return can_repeat(a) ? repeated(heap, a, b.whole()) : repeated(heap, b, a.whole());
  }
  fail_operands(a, b, symbol);
}

Value slice(Heap& heap, const Value& object, const Value& from, const Value& to, const Value& step) {
  if (object.is(Kind::undefined)) {
    fail_undefined(object);
  }
  const bool is_text = object.is(Kind::text);
  if (!is_text && !(object.is(Kind::list) && object.list->kind <= ListKind::range)) {
    fail(fmt::format("{} has no slices", type_name(object)));
  }
  for (const Value& part : {from, to, step}) {
    if (!part.is(Kind::none) && !part.is_whole()) {
      fail(fmt::format("a slice needs whole numbers, not {}", type_name(part)));
    }
  }
  const std::int64_t by = step.is(Kind::none) ? 1 : step.whole();
  if (by == 0) {
    fail("the step of a slice is 0");
  }
  heap.spend(is_text ? object.text->bytes.size() / 32 : 0);
  const std::int64_t length = *length_of(object);
  const auto bound = [&](const Value& value, std::int64_t otherwise) {
    if (value.is(Kind::none)) {
      return otherwise;
    }
    const std::int64_t lowest = by < 0 ? -1 : 0;
    const std::int64_t at = value.whole() < 0 ? value.whole() + length : value.whole();
    return std::clamp(at, lowest, by < 0 ? length - 1 : length);
  };
  const std::int64_t first = bound(from, by < 0 ? length - 1 : 0);
  const std::int64_t last = bound(to, by < 0 ? -1 : length);
  if (is_text && by == 1) {
    const std::string_view bytes = bytes_of(object);
    const std::size_t begin = offset_of(bytes, static_cast<std::size_t>(first));
    const std::size_t count = static_cast<std::size_t>(std::max<std::int64_t>(last - first, 0));
    return heap.text(bytes.substr(begin, offset_of(bytes.substr(begin), count)), object.text->is_markup);
  }
  std::vector<std::string_view> characters;
  const Heap::Temporary views(heap, is_text ? static_cast<std::size_t>(length) * sizeof(std::string_view) : 0);
  if (is_text) {
    heap.spend(object.text->bytes.size() / 8);
    characters = characters_of(bytes_of(object));
  }
  std::string text;
  std::vector<Value> items;
  for (std::int64_t at = first; by > 0 ? at < last : at > last;) {
    if (is_text) {
      text += characters[static_cast<std::size_t>(at)];
    } else {
      items.push_back(object.list->items[static_cast<std::size_t>(at)]);
    }
    if (__builtin_add_overflow(at, by, &at)) {
      break;
    }
  }
  if (is_text) {
    return heap.text(text, object.text->is_markup);
  }
  if (object.list->kind != ListKind::range) {
    return heap.list(std::move(items), object.list->kind);
  }
  const List& whole = *object.list;
  Value made = heap.list(std::move(items), ListKind::range);
  const auto number_at = [&](std::int64_t at) {
    std::int64_t number = 0;
    if (__builtin_mul_overflow(at, whole.step, &number) || __builtin_add_overflow(whole.start, number, &number)) {
      fail_overflow();
    }
    return number;
  };
  made.list->start = number_at(first);
  made.list->stop = number_at(last);
  if (__builtin_mul_overflow(whole.step, by, &made.list->step)) {
    fail_overflow();
  }
  return made;
}

}  // namespace shardrun::templates
