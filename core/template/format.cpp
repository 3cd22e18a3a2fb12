// Python's two ways of formatting texts: "%s" % value and "{}".format(value).

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "core/template/evaluator.h"
#include "core/template/text.h"

namespace shardrun::templates {

namespace {

struct Form {
  std::string fill = " ";
  char align = 0;
  char sign = '-';
  bool is_alternate = false;
  bool has_zeros = false;
  std::int64_t width = 0;
  char grouping = 0;
  std::int64_t precision = -1;
  char type = 0;
};

constexpr std::int64_t widest = 10'000;

/// Removes a number from the start of a text and returns it; returns `otherwise` if the text begins with no number.
std::int64_t take_number(std::string_view& text, std::int64_t otherwise) {
  if (text.empty() || text[0] < '0' || text[0] > '9') {
    return otherwise;
  }
  std::int64_t number = 0;
  while (!text.empty() && text[0] >= '0' && text[0] <= '9') {
    number = number * 10 + (text[0] - '0');
    text.remove_prefix(1);
    if (number > widest) {
      fail(fmt::format("a format asks for more than {} characters", widest));
    }
  }
  return number;
}

Form parse_form(std::string_view text) {
  const std::string whole(text);
  Form form;
  constexpr std::string_view aligns = "<>=^";
  const std::size_t first = text.empty() ? 0 : offset_of(text, 1);
  if (first < text.size() && aligns.find(text[first]) != std::string_view::npos) {
    form.fill = text.substr(0, first);
    form.align = text[first];
    text.remove_prefix(first + 1);
  } else if (!text.empty() && aligns.find(text[0]) != std::string_view::npos) {
    form.align = text[0];
    text.remove_prefix(1);
  }
  const auto take = [&](std::string_view any) {
    if (text.empty() || any.find(text[0]) == std::string_view::npos) {
      return '\0';
    }
    const char c = text[0];
    text.remove_prefix(1);
    return c;
  };
  if (const char sign = take("+- ")) {
    form.sign = sign;
  }
  form.is_alternate = take("#") != 0;
  form.has_zeros = take("0") != 0;
  form.width = take_number(text, 0);
  form.grouping = take(",_");
  if (take(".") != 0) {
    form.precision = take_number(text, -1);
  }
  form.type = take("sdbcoxXeEfFgG%");
  if (!text.empty()) {
    fail(fmt::format("the format '{}' is not supported", whole));
  }
  return form;
}

/// Pads a text to the width of its format. `usual`: the alignment if the format has none. `digits_at`: the offset of a
/// number's digits, after its sign and prefix.
std::string aligned(const std::string& text, const Form& form, char usual, std::size_t digits_at) {
  const auto length = static_cast<std::int64_t>(count_characters(text));
  const std::int64_t lacks = std::max<std::int64_t>(form.width - length, 0);
  const bool fills_zeros = form.has_zeros && form.align == 0;
  const char align = form.align != 0 ? form.align : fills_zeros ? '=' : usual;
  const std::string fill = fills_zeros || (form.has_zeros && form.fill == " ") ? "0" : form.fill;
  const std::int64_t before = align == '<' ? 0 : align == '^' ? lacks / 2 : lacks;
  std::string left;
  std::string right;
  for (std::int64_t i = 0; i < lacks; ++i) {
    (i < before ? left : right) += fill;
  }
  return align == '=' ? text.substr(0, digits_at) + left + text.substr(digits_at) : left + text + right;
}

std::string grouped(std::string digits, char mark, std::size_t size) {
  const std::size_t end = std::min(digits.find_first_not_of("0123456789abcdefABCDEF"), digits.size());
  for (std::size_t at = end; at > size; at -= size) {
    digits.insert(at - size, 1, mark);
  }
  return digits;
}

std::string real_digits(double value, char type, std::int64_t precision, bool is_alternate) {
  const std::string form = fmt::format("%{}.*{}", is_alternate ? "#" : "", type);
  const int digits = static_cast<int>(precision < 0 ? 6 : precision);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
  std::string text(static_cast<std::size_t>(std::snprintf(nullptr, 0, form.c_str(), digits, value)), ' ');
  std::snprintf(text.data(), text.size() + 1, form.c_str(), digits, value);
#pragma GCC diagnostic pop
  return text;
}

std::string whole_digits(std::uint64_t value, char type) {
  return type == 'b'   ? fmt::format("{:b}", value)
         : type == 'o' ? fmt::format("{:o}", value)
         : type == 'x' ? fmt::format("{:x}", value)
         : type == 'X' ? fmt::format("{:X}", value)
                       : fmt::format("{}", value);
}

std::string formatted_number(const Value& value, Form form) {
  bool is_negative = false;
  std::string prefix;
  std::string digits;
  constexpr std::string_view whole_types = "dboxX";
  if (value.is_whole() && (form.type == 0 || whole_types.find(form.type) != std::string_view::npos)) {
    if (form.precision >= 0) {
      fail("a format of a whole number has no precision");
    }
    is_negative = value.whole() < 0;
    const auto bits = static_cast<std::uint64_t>(value.whole());
    digits = whole_digits(is_negative ? ~bits + 1 : bits, form.type);
    prefix = form.is_alternate && form.type != 0 && form.type != 'd' ? std::string("0") + form.type : "";
  } else {
    const double number = value.number();
    is_negative = std::signbit(number) && !std::isnan(number);
    const double positive = std::fabs(number);
    if (form.type == 0 && form.precision < 0) {
      digits = shown_real(positive);
    } else if (form.type == 0 || form.type == 's' || form.type == 'c') {
      fail("this format of a number is not supported");
    } else if (form.type == '%') {
      digits = real_digits(positive * 100, 'f', form.precision, form.is_alternate) + "%";
    } else if (whole_types.find(form.type) != std::string_view::npos) {
      fail(fmt::format("the format '{}' needs a whole number", form.type));
    } else {
      digits = real_digits(positive, form.type, form.precision, form.is_alternate);
    }
  }
  if (form.grouping != 0) {
    if (form.has_zeros || form.align == '=') {
      fail("a format with zeros and groups of digits is not supported");
    }
    digits = grouped(std::move(digits), form.grouping,
                     form.type == 'b' || form.type == 'o' || form.type == 'x' || form.type == 'X' ? 4 : 3);
  }
  const std::string sign = is_negative ? "-" : form.sign == '-' ? "" : std::string(1, form.sign);
  return aligned(sign + prefix + digits, form, '>', sign.size() + prefix.size());
}

/// Python's format(value, text).
std::string formatted_value(Heap& heap, const Value& value, std::string_view text) {
  if (text.empty()) {
    return shown(heap, value);
  }
  const Form form = parse_form(text);
  if (value.is_number()) {
    return formatted_number(value, form);
  }
  if (!value.is(Kind::text)) {
    fail(fmt::format("the format '{}' has no meaning for {}", text, type_name(value)));
  }
  if ((form.type != 0 && form.type != 's') || form.sign != '-' || form.is_alternate || form.grouping != 0 ||
      form.align == '=') {
    fail(fmt::format("the format '{}' has no meaning for a text", text));
  }
  const std::string_view bytes = bytes_of(value);
  const std::string cut(
      form.precision < 0 ? bytes : bytes.substr(0, offset_of(bytes, static_cast<std::size_t>(form.precision))));
  Form plain = form;
  if (plain.has_zeros && plain.align == 0) {
    plain.align = '<';
    plain.fill = "0";
  }
  return aligned(cut, plain, '<', 0);
}

}  // namespace

std::string formatted_by_braces(Evaluator& evaluator, std::string_view form, const Arguments& arguments) {
  Heap& heap = evaluator.heap();
  std::string result;
  std::int64_t automatic = 0;  // the index for the next {}; -1: the fields have explicit indices
  const auto field_value = [&](std::string_view field) {
    const std::size_t end = std::min(field.find_first_of(".["), field.size());
    std::string_view name = field.substr(0, end);
    std::string_view rest = field.substr(end);
    const bool is_number = !name.empty() && name.find_first_not_of("0123456789") == std::string_view::npos;
    if ((name.empty() && automatic < 0) || (is_number && automatic > 0)) {
      fail("fields with numbers and without stand in one format");
    }
    std::optional<Value> value;
    if (name.empty() || is_number) {
      const std::int64_t index = name.empty() ? automatic++ : take_number(name, 0);
      automatic = is_number ? -1 : automatic;
      if (index < static_cast<std::int64_t>(arguments.positional.size())) {
        value = arguments.positional[static_cast<std::size_t>(index)];
      }
    } else {
      const auto found = std::ranges::find(arguments.named, name, &NamedValue::name);
      if (found != arguments.named.end()) {
        value = found->value;
      }
    }
    if (!value) {
      fail(fmt::format("the format has a field '{}' for which there is no value", field));
    }
    while (!rest.empty()) {
      const bool is_attribute = rest[0] == '.';
      const std::size_t last = is_attribute ? std::min(rest.find_first_of(".[", 1), rest.size()) : rest.find(']');
      if (last == std::string_view::npos || last == 1 || (!is_attribute && rest[0] != '[')) {
        fail(fmt::format("the field '{}' is not supported", field));
      }
      std::string_view part = rest.substr(1, last - 1);
      const bool is_index = part.find_first_not_of("0123456789") == std::string_view::npos;
      value = is_attribute ? evaluator.attribute(*value, part)
              : is_index   ? evaluator.item(*value, Value::of(take_number(part, 0)))
                           : evaluator.item(*value, heap.text(part));
      rest.remove_prefix(is_attribute ? last : last + 1);
    }
    return *value;
  };
  while (!form.empty()) {
    const std::size_t plain = std::min(form.find_first_of("{}"), form.size());
    result += form.substr(0, plain);
    heap.check_text(result.size());
    form.remove_prefix(plain);
    if (form.empty()) {
      break;
    }
    if (form.size() > 1 && form[1] == form[0]) {
      result += form[0];
      form.remove_prefix(2);
      continue;
    }
    heap.spend(1);
    const std::size_t end = form.find('}');
    if (form[0] == '}' || end == std::string_view::npos ||
        form.substr(1, end - 1).find('{') != std::string_view::npos) {
      fail("a format has a brace without its other, or a field within a field, which is not supported");
    }
    std::string_view field = form.substr(1, end - 1);
    form.remove_prefix(end + 1);
    const std::size_t mark = std::min(field.find_first_of("!:"), field.size());
    Value value = field_value(field.substr(0, mark));
    field.remove_prefix(mark);
    if (field.starts_with('!')) {
      if (field.size() < 2 || (field[1] != 's' && field[1] != 'r') || (field.size() > 2 && field[2] != ':')) {
        fail(fmt::format("the conversion '{}' is not supported", field));
      }
      value = heap.text(field[1] == 's' ? shown(heap, value) : represented(heap, value));
      field.remove_prefix(2);
    }
    result += formatted_value(heap, value, field.empty() ? field : field.substr(1));
  }
  return result;
}

namespace {

/// Formats one field of a % format. `form` begins after the '%' and the key; the field is removed from it.
std::string percent_field(Heap& heap, std::string_view& form, const std::function<Value()>& value) {
  Form parsed;
  bool is_left = false;
  for (; !form.empty() && std::string_view("-+ #0").find(form[0]) != std::string_view::npos; form.remove_prefix(1)) {
    is_left = is_left || form[0] == '-';
    parsed.sign = form[0] == '+' || (form[0] == ' ' && parsed.sign != '+') ? form[0] : parsed.sign;
    parsed.is_alternate = parsed.is_alternate || form[0] == '#';
    parsed.has_zeros = parsed.has_zeros || form[0] == '0';
  }
  parsed.width = take_number(form, 0);
  if (form.starts_with('.')) {
    form.remove_prefix(1);
    parsed.precision = take_number(form, 0);
  }
  if (form.empty()) {
    fail("a format by '%' ends within a field");
  }
  const char type = form[0];
  form.remove_prefix(1);
  if (type == '%') {
    return "%";
  }
  parsed.align = is_left ? '<' : 0;
  parsed.has_zeros = parsed.has_zeros && !is_left;
  Value given = value();
  if (type == 's' || type == 'r') {
    const std::string text = type == 's' ? shown(heap, given) : represented(heap, given);
    parsed.has_zeros = false;
    const std::string_view cut(text);
    return aligned(
        std::string(parsed.precision < 0 ? cut
                                         : cut.substr(0, offset_of(cut, static_cast<std::size_t>(parsed.precision)))),
        parsed, '>', 0);
  }
  if (given.is(Kind::undefined)) {
    fail_undefined(given);
  }
  constexpr std::string_view types = "diuxXoeEfFgG";
  if (types.find(type) == std::string_view::npos) {
    fail(fmt::format("the format '%{}' is not supported", type));
  }
  const bool is_whole = std::string_view("diuxXo").find(type) != std::string_view::npos;
  if (!given.is_number() ||
      (is_whole && !given.is_whole() && std::string_view("xXo").find(type) != std::string_view::npos)) {
    fail(fmt::format("the format '%{}' needs a number, not {}", type, type_name(given)));
  }
  if (is_whole && !given.is_whole()) {
    if (!(std::fabs(given.real) < 9e18)) {
      fail("a number has more than 64 bits, which is not supported");
    }
    given = Value::of(static_cast<std::int64_t>(given.real));
  }
  if (is_whole && parsed.precision >= 0) {
    fail("a format by '%' of a whole number with a precision is not supported");
  }
  parsed.type = type == 'i' || type == 'u' ? 'd' : type;
  return formatted_number(given, parsed);
}

}  // namespace

std::string formatted_by_percent(Heap& heap, std::string_view form, const Value& values) {
  const bool is_tuple = is_list(values, ListKind::tuple);
  const bool is_dict = values.is(Kind::dict);
  const std::size_t count = is_tuple ? values.list->items.size() : 1;
  std::size_t used = 0;
  std::string result;
  while (!form.empty()) {
    const std::size_t plain = std::min(form.find('%'), form.size());
    result += form.substr(0, plain);
    heap.check_text(result.size());
    form.remove_prefix(plain);
    if (form.empty()) {
      break;
    }
    form.remove_prefix(1);
    heap.spend(1);
    std::optional<std::string_view> key;
    if (form.starts_with('(')) {
      const std::size_t end = form.find(')');
      if (!is_dict || end == std::string_view::npos) {
        fail("a format by '%' with names needs a dict");
      }
      key = form.substr(1, end - 1);
      form.remove_prefix(end + 1);
    }
    result += percent_field(heap, form, [&] {
      if (key) {
        const Value* const found = find(heap, *values.dict, heap.text(*key));
        if (found == nullptr) {
          fail(fmt::format("a format by '%' has the name '{}', which the dict lacks", *key));
        }
        return *found;
      }
      if (used == count) {
        fail("a format by '%' has more fields than values");
      }
      return is_tuple ? values.list->items[used++] : (++used, values);
    });
  }
  if (used < count && !is_dict && !is_list(values, ListKind::list)) {
    fail("a format by '%' has fewer fields than values");
  }
  return result;
}

}  // namespace shardrun::templates
