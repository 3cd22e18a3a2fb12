#pragma once

#include <boost/json/value.hpp>
#include <cstdint>
#include <deque>
#include <functional>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/template/template.h"

namespace shardrun::templates {

enum class Kind : std::uint8_t {
  undefined,
  none,
  boolean,
  integer,
  real,
  text,
  list,
  dict,
  name_space,
  function,
  loop,
};

/// The Python type that a list of this kind stands for.
enum class ListKind : std::uint8_t { list, tuple, range, keys, values, items, iterator };

struct Text;
struct List;
struct Dict;
struct Function;
struct Loop;

/// A value of a template. A Heap owns its text, list, dict, function or loop.
struct Value {
  Kind kind = Kind::undefined;
  union {
    std::int64_t integer;
    bool boolean;
    double real;
    Text* text;  ///< for text; for undefined: why using the value is an error (can be null)
    List* list;
    Dict* dict;  ///< for dict and name_space
    Function* function;
    Loop* loop;
  };

  Value() noexcept : text(nullptr) {}
  [[nodiscard]] static Value none() noexcept;
  [[nodiscard]] static Value of(bool value) noexcept;
  [[nodiscard]] static Value of(std::int64_t value) noexcept;
  [[nodiscard]] static Value of(double value) noexcept;

  [[nodiscard]] bool is(Kind which) const noexcept { return kind == which; }
  [[nodiscard]] bool is_number() const noexcept { return kind >= Kind::boolean && kind <= Kind::real; }
  /// Whether the value is a bool or an integer.
  [[nodiscard]] bool is_whole() const noexcept { return kind == Kind::boolean || kind == Kind::integer; }
  /// REQUIRES: is_whole().
  [[nodiscard]] std::int64_t whole() const noexcept { return kind == Kind::boolean ? (boolean ? 1 : 0) : integer; }
  /// REQUIRES: is_number().
  [[nodiscard]] double number() const noexcept { return kind == Kind::real ? real : static_cast<double>(whole()); }
};

/// Returns the next value each time it is called; nothing at the end.
using Iterator = std::function<std::optional<Value>()>;

struct Text {
  std::string bytes;
  bool is_markup = false;  ///< HTML, which is not escaped again
};

struct List {
  ListKind kind = ListKind::list;
  std::vector<Value> items;
  std::int64_t start = 0;  ///< start, step and stop: for a range only
  std::int64_t step = 1;
  std::int64_t stop = 0;
  Iterator next = {};  ///< set for an iterator only
};

struct Dict {
  std::vector<std::pair<Value, Value>> entries;
};

struct NamedValue {
  std::string name;
  Value value;
};

struct Arguments {
  std::vector<Value> positional;
  std::vector<NamedValue> named;
};

struct Function {
  std::string name;
  std::function<Value(const Arguments&)> call;
  bool is_macro = false;
};

/// Owns all values of a rendering until its end, so destroying a value never recurses. Counts the memory and operations
/// of the rendering. Throws Error{data} beyond the limits.
class Heap {
 public:
  explicit Heap(const Limits& limits) : limits_(limits) {}
  Heap(const Heap&) = delete;
  Heap& operator=(const Heap&) = delete;

  [[nodiscard]] const Limits& limits() const noexcept { return limits_; }
  void spend(std::size_t steps);
  void charge(std::size_t bytes);
  /// Charges for memory that an operation needs only until it ends.
  class Temporary {
   public:
    Temporary(Heap& heap, std::size_t bytes) : heap_(heap), bytes_(bytes) { heap.charge(bytes); }
    Temporary(const Temporary&) = delete;
    Temporary& operator=(const Temporary&) = delete;
    ~Temporary() { heap_.bytes_ -= bytes_; }

   private:
    Heap& heap_;
    std::size_t bytes_;
  };
  /// Throws Error{data} if a text of this size would exceed the limits.
  void check_text(std::size_t bytes) const;

  Value text(std::string_view bytes, bool is_markup = false);
  Value list(std::vector<Value> items, ListKind kind = ListKind::list);
  Value iterator(Iterator next);
  Value dict(Dict dict, Kind kind = Kind::dict);
  Value function(std::string name, std::function<Value(const Arguments&)> call, bool is_macro = false);
  Value undefined(std::string why);
  /// Converts JSON to a value. Throws Error{data} for an integer above 2^63 - 1, and beyond the limits.
  Value of_json(const boost::json::value& json);

  /// Counts one more level of nested calls and values during its lifetime. Throws Error{data} beyond the limit.
  class Deeper {
   public:
    explicit Deeper(Heap& heap);
    Deeper(const Deeper&) = delete;
    Deeper& operator=(const Deeper&) = delete;
    ~Deeper() { --heap_.depth_; }

   private:
    Heap& heap_;
  };

 private:
  Limits limits_;
  std::int64_t steps_ = 0;
  std::size_t bytes_ = 0;
  std::int64_t depth_ = 0;
  std::deque<Text> texts_;
  std::deque<List> lists_;
  std::deque<Dict> dicts_;
  std::deque<Function> functions_;
};

/// Throws Error{data} with this message.
[[noreturn]] void fail(const std::string& message);
/// Throws the error that an undefined value causes when it is used.
[[noreturn]] void fail_undefined(const Value& value);
/// The name of a value's Python type, such as "NoneType".
[[nodiscard]] std::string_view type_name(const Value& value);

[[nodiscard]] inline std::string_view bytes_of(const Value& text);  // REQUIRES: a text
[[nodiscard]] bool is_list(const Value& value, ListKind kind);
[[nodiscard]] bool truth(const Value& value);
[[nodiscard]] bool equal(Heap& heap, const Value& a, const Value& b);
/// Whether a < b, or with `or_equal` a <= b. Throws Error{data} for values that Python cannot order.
[[nodiscard]] bool less(Heap& heap, const Value& a, const Value& b, bool or_equal, std::string_view symbol);
/// shown() is Python's str(), represented() its repr().
[[nodiscard]] std::string shown(Heap& heap, const Value& value);
[[nodiscard]] std::string represented(Heap& heap, const Value& value);
/// A number as Python's repr() writes a float.
[[nodiscard]] std::string shown_real(double value);
/// The bytes of the value's str(). They live as long as the heap.
[[nodiscard]] std::string_view text_of(Heap& heap, const Value& value);

[[nodiscard]] Iterator iterate(Heap& heap, const Value& value);
[[nodiscard]] std::vector<Value> all_of(Heap& heap, const Value& value);
/// The number of elements; nothing if the value has no length, such as an iterator.
[[nodiscard]] std::optional<std::int64_t> length_of(const Value& value);
[[nodiscard]] bool contains(Heap& heap, const Value& container, const Value& value);
[[nodiscard]] Value* find(Heap& heap, Dict& dict, const Value& key);
/// Sets dict[key]. Throws Error{data} if Python cannot hash the key, such as a list or dict.
void set(Heap& heap, Dict& dict, const Value& key, const Value& value);

[[nodiscard]] std::string to_json(Heap& heap, const Value& value, const Arguments& arguments);

/// Binds the arguments of a call to parameters, as Python does. Throws Error{data} if they do not fit. The first
/// `required` parameters must be given.
class Bound {
 public:
  Bound(std::string_view function, const Arguments& arguments, std::initializer_list<const char*> names,
        std::size_t required);

  [[nodiscard]] bool has(std::size_t i) const { return values_[i].has_value(); }
  [[nodiscard]] const Value& at(std::size_t i) const { return *values_[i]; }
  [[nodiscard]] Value or_none(std::size_t i) const { return has(i) ? at(i) : Value::none(); }
  [[nodiscard]] bool flag(std::size_t i, bool otherwise) const { return has(i) ? truth(at(i)) : otherwise; }
  [[nodiscard]] std::int64_t integer(std::size_t i, std::int64_t otherwise) const;
  /// The argument i, which must be a text. Throws Error{data} if it is not.
  [[nodiscard]] std::string_view text(std::size_t i) const;

 private:
  [[noreturn]] void fail_type(std::size_t i, std::string_view expected) const;

  std::string function_;
  std::vector<std::string> names_;
  std::vector<std::optional<Value>> values_;
};

std::string_view bytes_of(const Value& text) { return text.text->bytes; }

}  // namespace shardrun::templates
