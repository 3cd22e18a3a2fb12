#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "core/template/text.h"
#include "core/template/value.h"

namespace shardrun::templates {

namespace {

struct JsonForm {
  bool ascii = false;
  bool sorts = false;
  std::optional<std::string> indent;
  std::string comma = ", ";
  std::string colon = ": ";
};

std::string json_key(const Value& key, const JsonForm& form) {
  switch (key.kind) {
    case Kind::text: return json_text(key.text->bytes, form.ascii);
    case Kind::none: return "\"null\"";
    case Kind::boolean: return key.boolean ? "\"true\"" : "\"false\"";
    case Kind::integer: return "\"" + std::to_string(key.integer) + "\"";
    case Kind::real: return "\"" + shown_real(key.real) + "\"";
    default: fail(fmt::format("{} cannot be a key of JSON", type_name(key)));
  }
}

class JsonWriter {
 public:
  JsonWriter(Heap& heap, JsonForm form) : heap_(heap), form_(std::move(form)) {}

  std::string write(const Value& value) {
    add(value, 0);
    return std::move(text_);
  }

 private:
  void new_line(std::size_t level) {
    if (form_.indent) {
      heap_.check_text(text_.size() + level * form_.indent->size());
      text_ += '\n';
      for (std::size_t i = 0; i < level; ++i) {
        text_ += *form_.indent;
      }
    }
  }

  template <typename Elements, typename Add>
  void add_all(const Elements& elements, const char* marks, std::size_t level, const Add& add_one) {
    text_ += marks[0];
    bool is_first = true;
    for (const auto& element : elements) {
      text_ += is_first ? "" : form_.comma;
      is_first = false;
      new_line(level + 1);
      add_one(element);
    }
    if (!is_first) {
      new_line(level);
    }
    text_ += marks[1];
  }

  void add(const Value& value, std::size_t level) {
    const Heap::Deeper deeper(heap_);
    heap_.spend(1);
    heap_.check_text(text_.size());
    if (value.is(Kind::text)) {
      const Heap::Temporary quoted(heap_, value.text->bytes.size() * most_growth);
      heap_.spend(value.text->bytes.size() / 16);
      const std::string text = json_text(value.text->bytes, form_.ascii);
      heap_.check_text(text_.size() + text.size());
      text_ += text;
    } else if (value.is(Kind::none)) {
      text_ += "null";
    } else if (value.is(Kind::boolean)) {
      text_ += value.boolean ? "true" : "false";
    } else if (value.is(Kind::integer)) {
      text_ += std::to_string(value.integer);
    } else if (value.is(Kind::real)) {
      text_ += std::isnan(value.real)   ? "NaN"
               : std::isinf(value.real) ? (value.real < 0 ? "-Infinity" : "Infinity")
                                        : shown_real(value.real);
    } else if (is_list(value, ListKind::list) || is_list(value, ListKind::tuple)) {
      add_all(value.list->items, "[]", level, [&](const Value& item) { add(item, level + 1); });
    } else if (value.is(Kind::dict)) {
      std::vector<std::pair<Value, Value>> entries = value.dict->entries;
      if (form_.sorts) {
        heap_.spend(entries.size() * 16);
        std::ranges::stable_sort(
            entries, [&](const auto& a, const auto& b) { return less(heap_, a.first, b.first, false, "<"); });
      }
      add_all(entries, "{}", level, [&](const std::pair<Value, Value>& entry) {
        const Heap::Temporary quoted(heap_,
                                     entry.first.is(Kind::text) ? bytes_of(entry.first).size() * most_growth : 0);
        heap_.spend(entry.first.is(Kind::text) ? bytes_of(entry.first).size() / 16 : 0);
        text_ += json_key(entry.first, form_) + form_.colon;
        add(entry.second, level + 1);
      });
    } else {
      fail(fmt::format("{} cannot be written as JSON", value.is(Kind::undefined) && value.text != nullptr
                                                           ? "an undefined value (" + value.text->bytes + ")"
                                                           : std::string(type_name(value))));
    }
  }

  Heap& heap_;
  JsonForm form_;
  std::string text_;
};

}  // namespace

std::string to_json(Heap& heap, const Value& value, const Arguments& arguments) {
  const Bound bound("tojson", arguments, {"ensure_ascii", "indent", "separators", "sort_keys"}, 0);
  JsonForm form{.ascii = bound.flag(0, false), .sorts = bound.flag(3, false)};
  if (bound.has(1) && !bound.at(1).is(Kind::none)) {
    form.indent =
        bound.at(1).is(Kind::text)
            ? std::string(bytes_of(bound.at(1)))
            : std::string(static_cast<std::size_t>(std::clamp<std::int64_t>(bound.integer(1, 0), 0, 1000)), ' ');
    form.comma = ",";
  }
  if (bound.has(2) && !bound.at(2).is(Kind::none)) {
    const std::vector<Value> separators = all_of(heap, bound.at(2));
    if (separators.size() != 2 || !separators[0].is(Kind::text) || !separators[1].is(Kind::text)) {
      fail("tojson: separators are two texts");
    }
    form.comma = bytes_of(separators[0]);
    form.colon = bytes_of(separators[1]);
  }
  return JsonWriter(heap, form).write(value);
}

}  // namespace shardrun::templates
