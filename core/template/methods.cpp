// The methods of texts, lists and dicts.

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <tuple>
#include <utility>

#include "core/base/text.h"
#include "core/template/evaluator.h"
#include "core/template/text.h"

namespace shardrun::templates {
namespace {

using Method = Named<Value>;

// Texts ---------------------------------------------------------------------------------------------------------------

template <std::string (*Change)(std::string_view)>
Value changed(Evaluator& evaluator, const Value& self, const Arguments& arguments) {
  const Bound bound("this method", arguments, {}, 0);
  const Heap::Temporary made(evaluator.heap(), bytes_of(self).size() * most_growth);
  evaluator.heap().spend(bytes_of(self).size() / 8);
  return evaluator.heap().text(Change(bytes_of(self)), self.text->is_markup);
}

template <bool (*Is)(std::string_view)>
Value checked(Evaluator& evaluator, const Value& self, const Arguments& arguments) {
  const Bound bound("this method", arguments, {}, 0);
  evaluator.heap().spend(bytes_of(self).size() / 8);
  return Value::of(Is(bytes_of(self)));
}

bool is_ascii(std::string_view text) {
  return std::ranges::all_of(text, [](char c) { return static_cast<unsigned char>(c) < 0x80; });
}
template <unsigned Traits>
bool has_all(std::string_view text) {
  return all_have(text, Traits);
}
bool is_printable(std::string_view text) { return text.empty() || all_have(text, printable_character); }
bool is_lower(std::string_view text) { return is_case(text, lower_case); }
bool is_upper(std::string_view text) { return is_case(text, upper_case); }

template <Side On>
Value strip(Evaluator& evaluator, const Value& self, const Arguments& arguments) {
  const Bound bound("strip", arguments, {"chars"}, 0);
  const bool has_set = bound.has(0) && !bound.at(0).is(Kind::none);
  evaluator.heap().spend((bytes_of(self).size() + (has_set ? bound.text(0).size() : 0)) / 32);
  return evaluator.heap().text(
      stripped(bytes_of(self), On, has_set ? std::optional<std::string_view>(bound.text(0)) : std::nullopt),
      self.text->is_markup);
}

/// Calls `each` with a function that takes parts of the text `self`, and returns these parts as a list. `from_right`:
/// the parts come in reverse order.
template <typename Each>
Value list_of(Heap& heap, const Value& self, bool from_right, const Each& each) {
  std::vector<Value> items;
  each([&](std::string_view part) { items.push_back(heap.text(part, self.text->is_markup)); });
  if (from_right) {
    std::ranges::reverse(items);
  }
  return heap.list(std::move(items));
}

template <bool FromRight>
Value split(Evaluator& evaluator, const Value& self, const Arguments& arguments) {
  const Bound bound("split", arguments, {"sep", "maxsplit"}, 0);
  Heap& heap = evaluator.heap();
  const std::int64_t most = bound.integer(1, -1);
  heap.spend(bytes_of(self).size() / 4);
  if (bound.or_none(0).is(Kind::none)) {
    return list_of(heap, self, FromRight,
                   [&](const TakePart& take) { split_at_space(bytes_of(self), most, FromRight, take); });
  }
  if (bound.text(0).empty()) {
    fail("split: the separator is empty");
  }
  return list_of(heap, self, FromRight,
                 [&](const TakePart& take) { split_at(bytes_of(self), bound.text(0), most, FromRight, take); });
}

Value split_lines(Evaluator& evaluator, const Value& self, const Arguments& arguments) {
  const Bound bound("splitlines", arguments, {"keepends"}, 0);
  evaluator.heap().spend(bytes_of(self).size() / 4);
  return list_of(evaluator.heap(), self, false,
                 [&](const TakePart& take) { each_line(bytes_of(self), bound.flag(0, false), take); });
}

template <bool FromRight>
Value partition(Evaluator& evaluator, const Value& self, const Arguments& arguments) {
  const Bound bound("partition", arguments, {"sep"}, 1);
  Heap& heap = evaluator.heap();
  if (bound.text(0).empty()) {
    fail("partition: the separator is empty");
  }
  heap.spend(bytes_of(self).size() / 32);
  const std::string_view text = bytes_of(self);
  const std::string_view separator = bound.text(0);
  const std::size_t at = FromRight ? find_last(text, separator) : find_first(text, separator);
  const bool is_found = at != std::string_view::npos;
  const auto part = [&](std::string_view bytes) { return heap.text(bytes, self.text->is_markup); };
  return heap.list({part(is_found    ? text.substr(0, at)
                         : FromRight ? ""
                                     : text),
                    part(is_found ? separator : ""),
                    part(is_found    ? text.substr(at + separator.size())
                         : FromRight ? text
                                     : "")},
                   ListKind::tuple);
}

/// The arguments `start` and `end` of Python's find() and index(), as places of a sequence of this length. `first`: the
/// index of `start` among the arguments. `start` can be after `end`, and after the sequence's end.
std::pair<std::int64_t, std::int64_t> places_of(const Bound& bound, std::size_t first, std::int64_t length) {
  const auto place = [&](std::size_t i, std::int64_t otherwise) {
    const std::int64_t at = bound.or_none(i).is(Kind::none) ? otherwise : bound.integer(i, otherwise);
    return at < 0 ? std::max<std::int64_t>(at + length, 0) : at;
  };
  return {place(first, 0), std::min(place(first + 1, length), length)};
}

/// The part of a text between these arguments. Nothing if start is after the end. `from` receives the start.
std::optional<std::string_view> part_of(std::string_view text, const Bound& bound, std::size_t first,
                                        std::int64_t& from) {
  const auto length = static_cast<std::int64_t>(count_characters(text));
  std::int64_t to = 0;
  std::tie(from, to) = places_of(bound, first, length);
  if (from > length || from > to) {
    return std::nullopt;
  }
  const std::size_t begin = offset_of(text, static_cast<std::size_t>(from));
  return text.substr(begin, offset_of(text.substr(begin), static_cast<std::size_t>(to - from)));
}

enum class Search : std::uint8_t { first, last, count };

template <Search How, bool MustBe>
Value find_text(Evaluator& evaluator, const Value& self, const Arguments& arguments) {
  const Bound bound("find", arguments, {"sub", "start", "end"}, 1);
  std::int64_t from = 0;
  const std::string_view wanted = bound.text(0);
  evaluator.heap().spend((bytes_of(self).size() + wanted.size()) / 8);
  const std::optional<std::string_view> part = part_of(bytes_of(self), bound, 1, from);
  if (How == Search::count) {
    std::int64_t count = part && wanted.empty() ? static_cast<std::int64_t>(count_characters(*part)) + 1 : 0;
    if (part && !wanted.empty()) {
      split_at(*part, wanted, -1, false, [&](std::string_view) { ++count; });
      --count;
    }
    return Value::of(count);
  }
  const std::size_t at = !part                  ? std::string_view::npos
                         : How == Search::first ? find_first(*part, wanted)
                                                : find_last(*part, wanted);
  if (at == std::string_view::npos) {
    if (MustBe) {
      fail(fmt::format("index: '{}' is not in the text", printable(shardrun::shown(wanted))));
    }
    return Value::of(std::int64_t{-1});
  }
  return Value::of(from + static_cast<std::int64_t>(count_characters(part->substr(0, at))));
}

template <bool AtEnd>
Value begins(Evaluator& evaluator, const Value& self, const Arguments& arguments) {
  const Bound bound("startswith", arguments, {"prefix", "start", "end"}, 1);
  evaluator.heap().spend(bound.has(1) ? bytes_of(self).size() / 32 : 0);
  std::int64_t from = 0;
  const std::optional<std::string_view> part =
      bound.has(1) ? part_of(bytes_of(self), bound, 1, from) : std::optional<std::string_view>(bytes_of(self));
  const auto is_it = [&](std::string_view text) {
    evaluator.heap().spend(1 + text.size() / 64);
    return part && (AtEnd ? part->ends_with(text) : part->starts_with(text));
  };
  if (!is_list(bound.at(0), ListKind::tuple)) {
    return Value::of(is_it(bound.text(0)));
  }
  return Value::of(std::ranges::any_of(bound.at(0).list->items, [&](const Value& text) {
    if (!text.is(Kind::text)) {
      fail(fmt::format("startswith and endswith need texts, not {}", type_name(text)));
    }
    return is_it(bytes_of(text));
  }));
}

void require_plain(const Value& self, std::string_view method) {
  if (self.text->is_markup) {
    fail(fmt::format("{} of a text that is marked as safe is not supported", method));
  }
}

Value replace(Evaluator& evaluator, const Value& self, const Arguments& arguments) {
  require_plain(self, "replace");
  const Bound bound("replace", arguments, {"old", "new", "count"}, 2);
  Heap& heap = evaluator.heap();
  heap.spend((bytes_of(self).size() + bound.text(0).size()) / 8);
  return heap.text(
      replaced(bytes_of(self), bound.text(0), bound.text(1), bound.integer(2, -1), heap.limits().text_bytes));
}

template <bool AtEnd>
Value remove_affix(Evaluator& evaluator, const Value& self, const Arguments& arguments) {
  const Bound bound("removeprefix", arguments, {"prefix"}, 1);
  std::string_view text = bytes_of(self);
  const std::string_view affix = bound.text(0);
  if (AtEnd ? text.ends_with(affix) : text.starts_with(affix)) {
    text = AtEnd ? text.substr(0, text.size() - affix.size()) : text.substr(affix.size());
  }
  return evaluator.heap().text(text, self.text->is_markup);
}

Value join(Evaluator& evaluator, const Value& self, const Arguments& arguments) {
  require_plain(self, "join");
  const Bound bound("join", arguments, {"iterable"}, 1);
  Heap& heap = evaluator.heap();
  std::string text;
  bool is_first = true;
  const Iterator next = iterate(heap, bound.at(0));
  while (const std::optional<Value> item = next()) {
    if (!item->is(Kind::text)) {
      fail(fmt::format("join needs texts, not {}: use the filter join", type_name(*item)));
    }
    text += is_first ? "" : bytes_of(self);
    text += bytes_of(*item);
    is_first = false;
    heap.check_text(text.size());
  }
  return heap.text(text);
}

enum class Place : std::uint8_t { left, right, center };

template <Place At>
Value justify(Evaluator& evaluator, const Value& self, const Arguments& arguments) {
  const Bound bound("justify", arguments, {"width", "fillchar"}, 1);
  Heap& heap = evaluator.heap();
  const std::string_view fill = bound.has(1) ? bound.text(1) : " ";
  if (count_characters(fill) != 1) {
    fail("the text to fill with has to be one character");
  }
  const auto length = static_cast<std::int64_t>(count_characters(bytes_of(self)));
  const std::int64_t width = bound.integer(0, 0);
  const std::int64_t lacks = width > length ? width - length : 0;
  heap.check_text(static_cast<std::size_t>(lacks));
  // As in CPython: if an odd padding is needed on both sides, an odd width has the longer part of it on the left.
  const std::int64_t before = At == Place::left ? 0 : At == Place::right ? lacks : lacks / 2 + (lacks & width & 1);
  std::string left;
  std::string right;
  for (std::int64_t i = 0; i < lacks; ++i) {
    (i < before ? left : right) += fill;
  }
  return heap.text(left + std::string(bytes_of(self)) + right, self.text->is_markup);
}

Value fill_zeros(Evaluator& evaluator, const Value& self, const Arguments& arguments) {
  const Bound bound("zfill", arguments, {"width"}, 1);
  Heap& heap = evaluator.heap();
  const auto length = static_cast<std::int64_t>(count_characters(bytes_of(self)));
  const std::int64_t lacks = bound.integer(0, 0) > length ? bound.integer(0, 0) - length : 0;
  heap.check_text(static_cast<std::size_t>(lacks));
  std::string text(bytes_of(self));
  text.insert(text.starts_with('-') || text.starts_with('+') ? 1 : 0, static_cast<std::size_t>(lacks), '0');
  return heap.text(text);
}

Value format_by_braces(Evaluator& evaluator, const Value& self, const Arguments& arguments) {
  require_plain(self, "format");
  return evaluator.heap().text(formatted_by_braces(evaluator, bytes_of(self), arguments));
}

constexpr Method text_methods[] = {
    {"capitalize", changed<capitalized>},
    {"center", justify<Place::center>},
    {"count", find_text<Search::count, false>},
    {"endswith", begins<true>},
    {"find", find_text<Search::first, false>},
    {"format", format_by_braces},
    {"index", find_text<Search::first, true>},
    {"isalnum", checked<has_all<alphabetic | decimal | digit | numeric>>},
    {"isalpha", checked<has_all<alphabetic>>},
    {"isascii", checked<is_ascii>},
    {"isdecimal", checked<has_all<decimal>>},
    {"isdigit", checked<has_all<digit>>},
    {"islower", checked<is_lower>},
    {"isnumeric", checked<has_all<numeric>>},
    {"isprintable", checked<is_printable>},
    {"isspace", checked<has_all<space_character>>},
    {"istitle", checked<is_title>},
    {"isupper", checked<is_upper>},
    {"join", join},
    {"ljust", justify<Place::left>},
    {"lower", changed<lower>},
    {"lstrip", strip<Side::left>},
    {"partition", partition<false>},
    {"removeprefix", remove_affix<false>},
    {"removesuffix", remove_affix<true>},
    {"replace", replace},
    {"rfind", find_text<Search::last, false>},
    {"rindex", find_text<Search::last, true>},
    {"rjust", justify<Place::right>},
    {"rpartition", partition<true>},
    {"rsplit", split<true>},
    {"rstrip", strip<Side::right>},
    {"split", split<false>},
    {"splitlines", split_lines},
    {"startswith", begins<false>},
    {"strip", strip<Side::both>},
    {"swapcase", changed<swapped_case>},
    {"title", changed<title>},
    {"upper", changed<upper>},
    {"zfill", fill_zeros},
};
constexpr std::string_view unsupported_of_text[] = {"casefold",     "encode",    "expandtabs", "format_map",
                                                    "isidentifier", "maketrans", "translate"};

// Dicts and lists -----------------------------------------------------------------------------------------------------

Value dict_get(Evaluator& evaluator, const Value& self, const Arguments& arguments) {
  const Bound bound("get", arguments, {"key", "default"}, 1);
  const Value* const found = find(evaluator.heap(), *self.dict, bound.at(0));
  return found != nullptr ? *found : bound.or_none(1);
}

template <ListKind View>
Value dict_view(Evaluator& evaluator, const Value& self, const Arguments& arguments) {
  const Bound bound("this method", arguments, {}, 0);
  Heap& heap = evaluator.heap();
  std::vector<Value> items;
  for (const auto& [key, value] : self.dict->entries) {
    items.push_back(View == ListKind::keys     ? key
                    : View == ListKind::values ? value
                                               : heap.list({key, value}, ListKind::tuple));
  }
  return heap.list(std::move(items), View);
}

Value dict_copy(Evaluator& evaluator, const Value& self, const Arguments& arguments) {
  const Bound bound("copy", arguments, {}, 0);
  return evaluator.heap().dict(*self.dict);
}

constexpr Method dict_methods[] = {
    {"copy", dict_copy},
    {"get", dict_get},
    {"items", dict_view<ListKind::items>},
    {"keys", dict_view<ListKind::keys>},
    {"values", dict_view<ListKind::values>},
};
constexpr std::string_view refused_of_dict[] = {"clear", "pop", "popitem", "setdefault", "update"};
constexpr std::string_view unsupported_of_dict[] = {"fromkeys"};

Value list_index(Evaluator& evaluator, const Value& self, const Arguments& arguments) {
  const Bound bound("index", arguments, {"value", "start", "stop"}, 1);
  const std::vector<Value>& items = self.list->items;
  const auto [first, end] = places_of(bound, 1, static_cast<std::int64_t>(items.size()));
  for (std::int64_t i = first; i < end; ++i) {
    if (equal(evaluator.heap(), items[static_cast<std::size_t>(i)], bound.at(0))) {
      return Value::of(i);
    }
  }
  fail("index: the value is not in the list");
}

Value list_count(Evaluator& evaluator, const Value& self, const Arguments& arguments) {
  const Bound bound("count", arguments, {"value"}, 1);
  return Value::of(static_cast<std::int64_t>(std::ranges::count_if(
      self.list->items, [&](const Value& item) { return equal(evaluator.heap(), item, bound.at(0)); })));
}

Value list_copy(Evaluator& evaluator, const Value& self, const Arguments& arguments) {
  const Bound bound("copy", arguments, {}, 0);
  return evaluator.heap().list(self.list->items);
}

constexpr Method list_methods[] = {{"count", list_count}, {"index", list_index}, {"copy", list_copy}};
constexpr std::string_view refused_of_list[] = {"append", "clear",  "extend",  "insert",
                                                "pop",    "remove", "reverse", "sort"};
constexpr std::string_view unsupported_of_number[] = {
    "as_integer_ratio", "bit_count", "bit_length", "conjugate", "denominator", "from_bytes", "fromhex", "hex", "imag",
    "is_integer",       "numerator", "real",       "to_bytes"};

/// The methods of a kind of value, with the names that the sandbox refuses and the names of Python not supported here.
struct Members {
  std::span<const Method> methods = {};
  std::span<const std::string_view> refused = {};
  std::span<const std::string_view> unsupported = {};
};

Members members_of(const Value& value) {
  if (value.is(Kind::text)) {
    return {text_methods, {}, unsupported_of_text};
  }
  if (value.is(Kind::dict)) {
    return {dict_methods, refused_of_dict, unsupported_of_dict};
  }
  if (is_list(value, ListKind::list)) {
    return {list_methods, refused_of_list, {}};
  }
  if (is_list(value, ListKind::tuple) || is_list(value, ListKind::range)) {
    return {std::span(list_methods).first(2), {}, {}};
  }
  return {{},
          {},
          value.is_number() ? std::span<const std::string_view>(unsupported_of_number)
                            : std::span<const std::string_view>()};
}

}  // namespace

std::optional<Value> method_of(Evaluator& evaluator, const Value& object, std::string_view name) {
  const Members members = members_of(object);
  if (const auto found = std::ranges::find(members.methods, name, &Method::name); found != members.methods.end()) {
    return evaluator.heap().function(std::string(name), [&evaluator, object, run = found->run](const Arguments& given) {
      return run(evaluator, object, given);
    });
  }
  if (std::ranges::find(members.refused, name) != members.refused.end()) {
    return evaluator.heap().undefined(
        fmt::format("access to attribute '{}' of '{}' object is unsafe.", name, type_name(object)));
  }
  if (std::ranges::find(members.unsupported, name) != members.unsupported.end()) {
    fail(fmt::format("the method '{}' of {} is not supported", name, type_name(object)));
  }
  return std::nullopt;
}

}  // namespace shardrun::templates
