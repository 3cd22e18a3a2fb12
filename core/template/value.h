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

/// What Python's type of a list would be.
enum class ListKind : std::uint8_t { list, tuple, range, keys, values, items, iterator };

struct Text;
struct List;
struct Dict;
struct Function;
struct Loop;

/// A value of a template. Texts and containers belong to a Heap.
struct Value {
  Kind kind = Kind::undefined;
  union {
    std::int64_t integer;
    bool boolean;
    double real;
    Text* text;  ///< also of an undefined value: why using it is an error; may be null
    List* list;
    Dict* dict;  ///< also of a namespace
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
  /// A bool or an int.
  [[nodiscard]] bool is_whole() const noexcept { return kind == Kind::boolean || kind == Kind::integer; }
  /// REQUIRES: is_whole().
  [[nodiscard]] std::int64_t whole() const noexcept { return kind == Kind::boolean ? (boolean ? 1 : 0) : integer; }
  /// REQUIRES: is_number().
  [[nodiscard]] double number() const noexcept { return kind == Kind::real ? real : static_cast<double>(whole()); }
};

/// The next value of those that something yields; nothing at the end.
using Iterator = std::function<std::optional<Value>()>;

struct Text {
  std::string bytes;
  bool is_markup = false;  ///< HTML that is not escaped again
};

struct List {
  ListKind kind = ListKind::list;
  std::vector<Value> items;
  std::int64_t start = 0;  ///< of a range, as its step and stop
  std::int64_t step = 1;
  std::int64_t stop = 0;
  Iterator next = {};  ///< of an iterator
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

/// Owns all values of a rendering until its end, so that no value, however it refers to others, is freed by recursion.
/// Counts what they need and what is done with them; throws Error{data} beyond the limits.
class Heap {
 public:
  explicit Heap(const Limits& limits) : limits_(limits) {}
  Heap(const Heap&) = delete;
  Heap& operator=(const Heap&) = delete;

  [[nodiscard]] const Limits& limits() const noexcept { return limits_; }
  void spend(std::size_t steps);
  void charge(std::size_t bytes);
  /// Charges for what an operation needs until it ends.
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
  /// Throws unless a text may have so many bytes.
  void check_text(std::size_t bytes) const;

  Value text(std::string_view bytes, bool is_markup = false);
  Value list(std::vector<Value> items, ListKind kind = ListKind::list);
  Value iterator(Iterator next);
  Value dict(Dict dict, Kind kind = Kind::dict);
  Value function(std::string name, std::function<Value(const Arguments&)> call, bool is_macro = false);
  Value undefined(std::string why);
  /// Converts JSON. Throws for an integer beyond 64 bits.
  Value of_json(const boost::json::value& json);

  /// Bounds how deep calls and values lie within each other.
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

/// Throws Error{data}.
[[noreturn]] void fail(const std::string& message);
/// Throws what using an undefined value is.
[[noreturn]] void fail_undefined(const Value& value);
/// As Python calls it, such as 'NoneType'.
[[nodiscard]] std::string_view type_name(const Value& value);

[[nodiscard]] inline std::string_view bytes_of(const Value& text);  // REQUIRES: a text
[[nodiscard]] bool is_list(const Value& value, ListKind kind);
[[nodiscard]] bool truth(const Value& value);
[[nodiscard]] bool equal(Heap& heap, const Value& a, const Value& b);
/// Whether a < b, or a <= b. Throws where Python has no order.
[[nodiscard]] bool less(Heap& heap, const Value& a, const Value& b, bool or_equal, std::string_view symbol);
/// As str() and repr() have it.
[[nodiscard]] std::string shown(Heap& heap, const Value& value);
[[nodiscard]] std::string represented(Heap& heap, const Value& value);
/// As repr() writes a float.
[[nodiscard]] std::string shown_real(double value);
/// The value as a text: itself if it is one.
[[nodiscard]] std::string_view text_of(Heap& heap, const Value& value);

[[nodiscard]] Iterator iterate(Heap& heap, const Value& value);
[[nodiscard]] std::vector<Value> all_of(Heap& heap, const Value& value);
/// Nothing if it has none, as an iterator.
[[nodiscard]] std::optional<std::int64_t> length_of(const Value& value);
[[nodiscard]] bool contains(Heap& heap, const Value& container, const Value& value);
[[nodiscard]] Value* find(Heap& heap, Dict& dict, const Value& key);
/// Throws where the key is a list or dict.
void set(Heap& heap, Dict& dict, const Value& key, const Value& value);

[[nodiscard]] std::string to_json(Heap& heap, const Value& value, const Arguments& arguments);

/// The arguments of a call by the names of its parameters, as Python binds them. Throws where they do not fit. `given`
/// come first.
class Bound {
 public:
  Bound(std::string_view function, const Arguments& arguments, std::initializer_list<const char*> names,
        std::size_t required);

  [[nodiscard]] bool has(std::size_t i) const { return values_[i].has_value(); }
  [[nodiscard]] const Value& at(std::size_t i) const { return *values_[i]; }
  [[nodiscard]] Value or_none(std::size_t i) const { return has(i) ? at(i) : Value::none(); }
  [[nodiscard]] bool flag(std::size_t i, bool otherwise) const { return has(i) ? truth(at(i)) : otherwise; }
  [[nodiscard]] std::int64_t integer(std::size_t i, std::int64_t otherwise) const;
  /// A text, where only that is allowed.
  [[nodiscard]] std::string_view text(std::size_t i) const;

 private:
  [[noreturn]] void fail_type(std::size_t i, std::string_view expected) const;

  std::string function_;
  std::vector<std::string> names_;
  std::vector<std::optional<Value>> values_;
};

std::string_view bytes_of(const Value& text) { return text.text->bytes; }

}  // namespace shardrun::templates
