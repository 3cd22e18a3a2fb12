#pragma once

/// Values, and the function to which they belong. Arithmetic on values adds nodes to the function's graph:
///
///     const Value u = f.state("u");
///     f.write("u", 0.5 * u + 0.25 * shift(u, 0, -1) + 0.25 * shift(u, 0, 1));
///
/// C++ does not define which operand of an expression is evaluated first. Store values in variables to fix the order.
///
/// A sum that contains multiples of values is one op, linear_combination, which adds from left to right; the sum of two
/// values is the op add. A sum's node is made when the sum is first used. The other operators and all ops with a name
/// are in math.hpp; Function::call can call any op.

#include <shardrun/model.h>
#include <shardrun/sdk/plugin.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace shardrun::sdk {

/// A dimension: the name by which strategies place it, and its size.
struct Dim {
  std::string axis;
  std::int64_t size = 1;

  /// A dimension that has one index for each `group` indices of this one, such as heads of keys for heads of queries.
  /// If a strategy splits this dimension, a rank has those indices of the result that its part needs, and several ranks
  /// can have the same one. REQUIRES: `group` divides the size.
  [[nodiscard]] Dim grouped(std::int64_t group) const {
    return {group == 1 ? axis : axis + "/" + std::to_string(group), size / group};
  }
};
using Dims = std::vector<Dim>;

/// The sizes of the caches of the function `decode`.
struct CacheSizes {
  std::int64_t pages = 0;        ///< pages that all sequences share; 0: there are no caches
  std::int64_t page = 0;         ///< tokens on a page
  std::int64_t of_sequence = 0;  ///< the most pages of a sequence
};

/// A constant of an op.
struct Attribute {
  std::string name;
  std::variant<std::int64_t, double, std::string, std::vector<double>, std::vector<std::int64_t>> value;
};

namespace detail {

/// A tensor type in its C form. It points into `dims`.
struct RawType {
  RawType(std::uint32_t element, const Dims& dims) {
    for (const Dim& dim : dims) {
      shape.push_back(dim.size);
      axes.push_back(dim.axis.c_str());
    }
    raw = {sizeof(sr_tensor_type), element, shape.data(), axes.data(), static_cast<std::uint32_t>(dims.size()), 0};
  }
  RawType(const RawType&) = delete;
  RawType& operator=(const RawType&) = delete;

  std::vector<std::int64_t> shape;
  std::vector<const char*> axes;
  sr_tensor_type raw{};
};

[[nodiscard]] inline sr_attribute raw_attribute(const Attribute& attribute) {
  sr_attribute raw{};
  raw.struct_size = sizeof(raw);
  raw.name = attribute.name.c_str();
  if (const auto* integer = std::get_if<std::int64_t>(&attribute.value)) {
    raw.type = SR_ATTRIBUTE_INTEGER;
    raw.integer = *integer;
  } else if (const auto* number = std::get_if<double>(&attribute.value)) {
    raw.type = SR_ATTRIBUTE_NUMBER;
    raw.number = *number;
  } else if (const auto* text = std::get_if<std::string>(&attribute.value)) {
    raw.type = SR_ATTRIBUTE_TEXT;
    raw.text = text->c_str();
  } else if (const auto* numbers = std::get_if<std::vector<double>>(&attribute.value)) {
    raw.type = SR_ATTRIBUTE_NUMBERS;
    raw.numbers = numbers->data();
    raw.count = static_cast<std::uint32_t>(numbers->size());
  } else {
    const auto& integers = std::get<std::vector<std::int64_t>>(attribute.value);
    raw.type = SR_ATTRIBUTE_INTEGERS;
    raw.integers = integers.data();
    raw.count = static_cast<std::uint32_t>(integers.size());
  }
  return raw;
}

}  // namespace detail

class Function;

namespace detail {
struct ValueNumbers;
}

/// A tensor of a function. Copies denote the same tensor. A value may be used only while its function is being built.
class Value {
 public:
  Value() = default;

  /// Whether it denotes a tensor; a default Value does not.
  [[nodiscard]] bool exists() const noexcept { return node_ != nullptr; }
  [[nodiscard]] Dims dims() const;
  [[nodiscard]] Function& function() const {
    require_set();
    return *node_->function;
  }

  [[nodiscard]] Value operator+(const Value& other) const;
  [[nodiscard]] Value operator-(const Value& other) const { return *this + other.times(-1); }
  [[nodiscard]] Value operator-() const { return times(-1); }
  [[nodiscard]] Value operator*(const Value& other) const;
  [[nodiscard]] Value times(double factor) const;
  friend Value operator*(double factor, const Value& value) { return value.times(factor); }
  friend Value operator*(const Value& value, double factor) { return value.times(factor); }

  /// Names the node of a sum. REQUIRES: the sum has not been used yet.
  [[nodiscard]] Value named(const std::string& name) const;

 private:
  friend class Function;

  struct Term;
  /// A tensor that the host has numbered, or a sum whose node is not made yet.
  struct Node {
    Function* function = nullptr;
    std::uint32_t number = 0;  ///< 0: a sum whose node is not made yet
    std::vector<Term> terms{};
  };
  struct Term {
    double factor = 1;
    std::shared_ptr<Node> value;
  };

  explicit Value(std::shared_ptr<Node> node) : node_(std::move(node)) {}
  void require_set() const {
    if (node_ == nullptr) {
      throw std::logic_error("a value that was never set is used");
    }
  }
  [[nodiscard]] static bool has_multiples(const std::vector<Term>& terms);
  /// The terms of a sum that contains multiples and whose node is not made yet; otherwise the value itself.
  [[nodiscard]] std::vector<Term> terms() const;

  std::shared_ptr<Node> node_;
};

/// A function that is being written.
class Function {
 public:
  Function(const sr_function_writer& writer, std::int64_t rows, bool training, std::int64_t length = 0)
      : writer_(writer), rows_(rows), length_(length), training_(training) {}
  Function(const Function&) = delete;
  Function& operator=(const Function&) = delete;

  /// The number of samples in a call.
  [[nodiscard]] std::int64_t rows() const noexcept { return rows_; }
  /// For `decode`: the number of tokens that a call adds to a sequence.
  [[nodiscard]] std::int64_t length() const noexcept { return length_; }
  /// Whether random layers, such as dropout, are active.
  [[nodiscard]] bool training() const noexcept { return training_; }

  [[nodiscard]] Value input(const std::string& name, Element element, const Dims& dims) {
    const detail::RawType type(static_cast<std::uint32_t>(element), dims);
    return made([&](std::uint32_t* number, sr_error* error) {
      return writer_.input(writer_.self, name.c_str(), &type.raw, number, error);
    });
  }

  /// The value of a state at the start of the function.
  [[nodiscard]] Value state(const std::string& name) {
    return made([&](std::uint32_t* number, sr_error* error) {
      return writer_.state(writer_.self, name.c_str(), number, error);
    });
  }

  /// A scalar constant.
  [[nodiscard]] Value constant(double value) { return call("constant", {}, {{"value", value}}); }

  /// Calls an op. If no name is given, the node is named after the parameters that it reads, or after the op.
  [[nodiscard]] std::vector<Value> call_all(const char* op, const std::vector<Value>& operands,
                                            const std::vector<Attribute>& attributes = {},
                                            const std::string& name = {}) {
    std::vector<std::uint32_t> numbers;
    for (const Value& operand : operands) {
      numbers.push_back(number_of(operand));
    }
    std::vector<sr_attribute> raw;
    for (const Attribute& attribute : attributes) {
      raw.push_back(detail::raw_attribute(attribute));
    }
    const sr_call call = {sizeof(sr_call),
                          static_cast<std::uint32_t>(numbers.size()),
                          op,
                          numbers.data(),
                          raw.data(),
                          static_cast<std::uint32_t>(raw.size()),
                          sizeof(sr_attribute),
                          name.empty() ? nullptr : name.c_str()};
    std::uint32_t results[most_results] = {};
    std::uint32_t count = 0;
    detail::call_host(
        [&](sr_error* error) { return writer_.call(writer_.self, &call, results, most_results, &count, error); });
    if (count > most_results) {
      throw std::logic_error(std::string("the op ") + op + " has more results than this SDK has room for");
    }
    std::vector<Value> values;
    for (std::uint32_t i = 0; i < count; ++i) {
      values.push_back(value_of(results[i]));
    }
    return values;
  }

  /// Calls an op with one result.
  [[nodiscard]] Value call(const char* op, const std::vector<Value>& operands,
                           const std::vector<Attribute>& attributes = {}, const std::string& name = {}) {
    const std::vector<Value> results = call_all(op, operands, attributes, name);
    if (results.size() != 1) {
      throw std::logic_error(std::string("the op ") + op + " has several results: use call_all");
    }
    return results.front();
  }

  /// The gradients of a scalar with respect to states, inputs or results of ops.
  [[nodiscard]] std::vector<Value> gradients(const Value& scalar, const std::vector<Value>& of) {
    std::vector<std::uint32_t> numbers;
    for (const Value& value : of) {
      numbers.push_back(number_of(value));
    }
    const std::uint32_t from = number_of(scalar);
    std::vector<std::uint32_t> results(of.size());
    detail::call_host([&](sr_error* error) {
      return writer_.gradient(writer_.self, from, numbers.data(), static_cast<std::uint32_t>(numbers.size()),
                              results.data(), error);
    });
    std::vector<Value> values;
    for (const std::uint32_t number : results) {
      values.push_back(value_of(number));
    }
    return values;
  }

  /// Names a value as one whose placement a strategy may decide.
  void cut_point(const std::string& name, const Value& value) {
    const std::uint32_t number = number_of(value);
    detail::call_host([&](sr_error* error) { return writer_.cut_point(writer_.self, name.c_str(), number, error); });
  }

  /// Sets the layer of the following nodes: -1 before the first layer, the number of layers after the last.
  void set_layer(std::int64_t layer) {
    make_sums();
    detail::call_host(
        [&](sr_error* error) { return writer_.set_layer(writer_.self, static_cast<std::int32_t>(layer), error); });
  }

  /// Puts `scope/` before the names of the following nodes and cut points; "" puts nothing.
  void set_scope(const std::string& scope) {
    make_sums();
    detail::call_host([&](sr_error* error) {
      return writer_.set_scope(writer_.self, scope.empty() ? nullptr : scope.c_str(), error);
    });
  }

  /// Sets the state's value after the function.
  void write(const std::string& state, const Value& value) {
    const std::uint32_t number = number_of(value);
    detail::call_host([&](sr_error* error) { return writer_.write(writer_.self, state.c_str(), number, error); });
  }

  /// Names an f32 tensor that the host reads after a call. A run saves the outputs of `iterate` as outputs/NAME.npy.
  void output(const std::string& name, const Value& value) {
    const std::uint32_t number = number_of(value);
    detail::call_host([&](sr_error* error) { return writer_.output(writer_.self, name.c_str(), number, error); });
  }

  void set_losses(const Value& losses) {
    const std::uint32_t number = number_of(losses);
    detail::call_host([&](sr_error* error) { return writer_.set_losses(writer_.self, number, error); });
  }

  void set_loss_counts(const Value& counts) {
    if (writer_.struct_size < offsetof(sr_function_writer, set_loss_counts) + sizeof(writer_.set_loss_counts)) {
      throw std::runtime_error("a loss with counts needs a host of plugin interface 1.8 or later");
    }
    const std::uint32_t number = number_of(counts);
    detail::call_host([&](sr_error* error) { return writer_.set_loss_counts(writer_.self, number, error); });
  }

 private:
  friend class Value;
  friend struct detail::ValueNumbers;
  static constexpr std::uint32_t most_results = 16;

  [[nodiscard]] Value value_of(std::uint32_t number) {
    return Value(std::make_shared<Value::Node>(Value::Node{this, number}));
  }

  template <class Call>
  [[nodiscard]] Value made(Call call) {
    std::uint32_t number = 0;
    detail::call_host([&](sr_error* error) { return call(&number, error); });
    return value_of(number);
  }

  [[nodiscard]] Value sum_of(std::vector<Value::Term> terms) {
    const auto node = std::make_shared<Value::Node>(Value::Node{this, 0, std::move(terms)});
    sums_.push_back(node);
    return Value(node);
  }

  /// The host's number of a value. Makes the node of a sum that has none yet.
  std::uint32_t number_of(const Value& value, const std::string& name = {}) {
    value.require_set();
    Value::Node& node = *value.node_;
    if (node.number == 0) {
      node.number = make_sum(node.terms, name);
      node.terms.clear();
    }
    return node.number;
  }

  /// Makes the node of a sum. A sum of two values is the op add. Multiples of values with the same rank are added by
  /// linear_combination; the op add then adds the terms that lack leading dimensions.
  [[nodiscard]] std::uint32_t make_sum(const std::vector<Value::Term>& terms, const std::string& name) {
    if (!Value::has_multiples(terms) && terms.size() <= 2) {
      return terms.size() == 1 ? number_of(Value(terms[0].value))
                               : call("add", {Value(terms[0].value), Value(terms[1].value)}, {}, name).node_->number;
    }
    std::size_t rank = 0;
    for (const Value::Term& term : terms) {
      rank = std::max(rank, dims_of(Value(term.value)).size());
    }
    std::vector<Value> operands;
    std::vector<double> factors;
    std::vector<Value> lacking;
    for (const Value::Term& term : terms) {
      const Value value(term.value);
      if (dims_of(value).size() == rank) {
        operands.push_back(value);
        factors.push_back(term.factor);
      } else {
        lacking.push_back(term.factor == 1 ? value : multiples({value}, {term.factor}, {}));
      }
    }
    Value sum = lacking.empty() || operands.size() > 1 || factors[0] != 1
                    ? multiples(operands, std::move(factors), lacking.empty() ? name : std::string())
                    : operands[0];
    for (std::size_t i = 0; i < lacking.size(); ++i) {
      sum = call("add", {sum, lacking[i]}, {}, i + 1 == lacking.size() ? name : std::string());
    }
    return sum.node_->number;
  }

  [[nodiscard]] Value multiples(const std::vector<Value>& operands, std::vector<double> factors,
                                const std::string& name) {
    return call("linear_combination", operands, {{"coefficients", std::move(factors)}}, name);
  }

  /// Makes the nodes of all sums that are still in use, before the layer or the scope changes.
  void make_sums() {
    for (const std::weak_ptr<Value::Node>& each : std::exchange(sums_, {})) {
      if (const std::shared_ptr<Value::Node> node = each.lock()) {
        number_of(Value(node));
      }
    }
  }

  [[nodiscard]] Dims dims_of(const Value& value) {
    const std::uint32_t number = number_of(value);
    const sr_tensor_type* type = nullptr;
    detail::call_host([&](sr_error* error) { return writer_.type_of(writer_.self, number, &type, error); });
    Dims dims;
    for (std::uint32_t d = 0; d < type->rank; ++d) {
      dims.push_back({type->axes[d], type->shape[d]});
    }
    return dims;
  }

  const sr_function_writer& writer_;
  std::int64_t rows_;
  std::int64_t length_;
  bool training_;
  std::vector<std::weak_ptr<Value::Node>> sums_;  ///< sums whose nodes are perhaps not made yet
};

inline Dims Value::dims() const { return function().dims_of(*this); }

inline bool Value::has_multiples(const std::vector<Term>& terms) {
  for (const Term& term : terms) {
    if (term.factor != 1) {
      return true;
    }
  }
  return false;
}

inline std::vector<Value::Term> Value::terms() const {
  require_set();
  return node_->number == 0 && has_multiples(node_->terms) ? node_->terms : std::vector<Term>{{1, node_}};
}

inline Value Value::operator+(const Value& other) const {
  std::vector<Term> terms = this->terms();
  for (Term& term : other.terms()) {
    terms.push_back(std::move(term));
  }
  return function().sum_of(std::move(terms));
}

inline Value Value::times(double factor) const {
  std::vector<Term> terms = this->terms();
  for (Term& term : terms) {
    term.factor *= factor;
  }
  return function().sum_of(std::move(terms));
}

inline Value Value::operator*(const Value& other) const { return function().call("multiply", {*this, other}); }

inline Value Value::named(const std::string& name) const {
  require_set();
  if (node_->number != 0) {
    throw std::logic_error("the value that is to be named '" + name + "' has been made already");
  }
  function().number_of(*this, name);
  return *this;
}

}  // namespace shardrun::sdk
