// The tests of Jinja, which are written after `is`, as in `value is defined`.

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "core/template/evaluator.h"
#include "core/template/text.h"

namespace shardrun::templates {
namespace {

/// The single argument of a test that compares a value with another. Throws Error{data} for other arguments.
const Value& other_of(const Arguments& arguments) {
  if (arguments.positional.size() != 1 || !arguments.named.empty()) {
    fail("this test takes one value");
  }
  return arguments.positional[0];
}

void require_none(const Arguments& arguments) { const Bound bound("this test", arguments, {}, 0); }

template <Kind Wanted>
bool is_kind(Evaluator& /*evaluator*/, const Value& value, const Arguments& arguments) {
  require_none(arguments);
  return value.is(Wanted);
}

template <bool Wanted>
bool is_truth(Evaluator& /*evaluator*/, const Value& value, const Arguments& arguments) {
  require_none(arguments);
  return value.is(Kind::boolean) && value.boolean == Wanted;
}

template <std::int64_t Rest>
bool has_rest(Evaluator& evaluator, const Value& value, const Arguments& arguments) {
  require_none(arguments);
  if (!value.is_number()) {
    unary(value, "-");
    fail(fmt::format("{} is neither odd nor even", type_name(value)));
  }
  return binary(evaluator.heap(), value, Value::of(std::int64_t{2}), "%").number() == Rest;
}

bool is_equal(Evaluator& evaluator, const Value& value, const Arguments& arguments) {
  return equal(evaluator.heap(), value, other_of(arguments));
}
bool is_unequal(Evaluator& evaluator, const Value& value, const Arguments& arguments) {
  return !equal(evaluator.heap(), value, other_of(arguments));
}
template <bool OrEqual>
bool is_less(Evaluator& evaluator, const Value& value, const Arguments& arguments) {
  return less(evaluator.heap(), value, other_of(arguments), OrEqual, OrEqual ? "<=" : "<");
}
template <bool OrEqual>
bool is_greater(Evaluator& evaluator, const Value& value, const Arguments& arguments) {
  return less(evaluator.heap(), other_of(arguments), value, OrEqual, OrEqual ? ">=" : ">");
}

template <CharacterTrait Wanted>
bool has_case(Evaluator& evaluator, const Value& value, const Arguments& arguments) {
  require_none(arguments);
  const std::string_view text = text_of(evaluator.heap(), value);
  evaluator.heap().spend(text.size() / 8);
  return is_case(text, Wanted);
}

bool is_same(Evaluator& evaluator, const Value& value, const Arguments& arguments) {
  const Value& other = other_of(arguments);
  if (value.kind != other.kind) {
    return false;
  }
  const bool is_small = value.is(Kind::integer) && value.integer >= -5 && value.integer <= 256;
  if (value.is(Kind::text) || value.is(Kind::real) || (value.is(Kind::integer) && !is_small)) {
    fail("sameas of texts and numbers is not supported: use ==");
  }
  if (value.is(Kind::list) || value.is(Kind::dict)) {
    return value.is(Kind::list) ? value.list == other.list : value.dict == other.dict;
  }
  return equal(evaluator.heap(), value, other);
}

constexpr Named<bool> tests[] = {
    {"!=", is_unequal},
    {"<", is_less<false>},
    {"<=", is_less<true>},
    {"==", is_equal},
    {">", is_greater<false>},
    {">=", is_greater<true>},
    {"boolean", is_kind<Kind::boolean>},
    {"callable",
     [](Evaluator& /*evaluator*/, const Value& value, const Arguments& arguments) {
       require_none(arguments);
       return value.is(Kind::function) || value.is(Kind::loop) || value.is(Kind::undefined);
     }},
    {"defined",
     [](Evaluator& /*evaluator*/, const Value& value, const Arguments& arguments) {
       require_none(arguments);
       return !value.is(Kind::undefined);
     }},
    {"divisibleby",
     [](Evaluator& evaluator, const Value& value, const Arguments& arguments) {
       const Value& by = other_of(arguments);
       if (!value.is_number() || !by.is_number()) {
         fail(fmt::format("divisibleby needs numbers, not {} and {}", type_name(value), type_name(by)));
       }
       return binary(evaluator.heap(), value, by, "%").number() == 0;
     }},
    {"eq", is_equal},
    {"equalto", is_equal},
    {"escaped",
     [](Evaluator& /*evaluator*/, const Value& value, const Arguments& arguments) {
       require_none(arguments);
       return value.is(Kind::text) && value.text->is_markup;
     }},
    {"even", has_rest<0>},
    {"false", is_truth<false>},
    {"float", is_kind<Kind::real>},
    {"ge", is_greater<true>},
    {"greaterthan", is_greater<false>},
    {"gt", is_greater<false>},
    {"in", [](Evaluator& evaluator, const Value& value,
              const Arguments& arguments) { return contains(evaluator.heap(), other_of(arguments), value); }},
    {"integer", is_kind<Kind::integer>},
    {"iterable",
     [](Evaluator& /*evaluator*/, const Value& value, const Arguments& arguments) {
       require_none(arguments);
       return value.is(Kind::text) || value.is(Kind::list) || value.is(Kind::dict) || value.is(Kind::loop) ||
              value.is(Kind::undefined);
     }},
    {"le", is_less<true>},
    {"lessthan", is_less<false>},
    {"lower", has_case<lower_case>},
    {"lt", is_less<false>},
    {"mapping", is_kind<Kind::dict>},
    {"ne", is_unequal},
    {"none", is_kind<Kind::none>},
    {"number",
     [](Evaluator& /*evaluator*/, const Value& value, const Arguments& arguments) {
       require_none(arguments);
       return value.is_number();
     }},
    {"odd", has_rest<1>},
    {"sameas", is_same},
    {"sequence",
     [](Evaluator& /*evaluator*/, const Value& value, const Arguments& arguments) {
       require_none(arguments);
       return value.is(Kind::text) || value.is(Kind::dict) || value.is(Kind::undefined) ||
              (value.is(Kind::list) && value.list->kind <= ListKind::range);
     }},
    {"string", is_kind<Kind::text>},
    {"true", is_truth<true>},
    {"undefined", is_kind<Kind::undefined>},
    {"upper", has_case<upper_case>},
};

}  // namespace

bool Evaluator::test(std::string_view name, const Value& value, const Arguments& given) {
  const auto found = std::ranges::find(tests, name, &Named<bool>::name);
  if (found == std::end(tests)) {
    fail(fmt::format("the test '{}' is not known", name));
  }
  const Heap::Deeper deeper(heap_);
  return found->run(*this, value, given);
}

}  // namespace shardrun::templates
