#pragma once

/// Values, and the function that they belong to. Arithmetic of values makes nodes of the function's graph:
///
///     const Value u = f.state("u");
///     f.write("u", 0.5 * u + 0.25 * shift(u, 0, -1) + 0.25 * shift(u, 0, 1));
///
/// C++ does not say which operand of an expression is made first. Values that are variables are made in their order.
///
/// A sum with multiples of values in it is one op, linear_combination, which adds from left to right; the sum of two
/// values is the op add. A sum is made when it is first used. The other operators and all ops with a name are in
/// math.hpp; any op can be called by Function::call.

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

  /// A dimension with an index for each `group` indices of this one: heads of keys for heads of queries. Where a
  /// strategy splits this one, a rank has the indices that its part needs, and several ranks may have one. REQUIRES:
  /// `group` divides the size.
  [[nodiscard]] Dim grouped(std::int64_t group) const {
    return {group == 1 ? axis : axis + "/" + std::to_string(group), size / group};
  }
};
using Dims = std::vector<Dim>;

/// A constant of an op.
struct Attribute {
  std::string name;
  std::variant<std::int64_t, double, std::string, std::vector<double>, std::vector<std::int64_t>> value;
};

namespace detail {

/// A type in its C form. It points into `dims`.
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

/// A tensor of a function. Copies are the same tensor. It is valid while its function is written.
class Value {
 public:
  Value() = default;

  /// Whether it is a tensor; a default Value is none.
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

  /// Names the node of a sum. REQUIRES: the sum was not used before.
  [[nodiscard]] Value named(const std::string& name) const;

 private:
  friend class Function;

  struct Term;
  /// A value of the host, or a sum that is not made yet.
  struct Node {
    Function* function = nullptr;
    std::uint32_t number = 0;  ///< 0: a sum that is not made yet
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
  /// Of a sum that is not made yet and has multiples in it; otherwise the value itself.
  [[nodiscard]] std::vector<Term> terms() const;

  std::shared_ptr<Node> node_;
};

/// One function, while it is written.
class Function {
 public:
  Function(const sr_function_writer& writer, std::int64_t rows, bool training)
      : writer_(writer), rows_(rows), training_(training) {}
  Function(const Function&) = delete;
  Function& operator=(const Function&) = delete;

  /// Samples of a call.
  [[nodiscard]] std::int64_t rows() const noexcept { return rows_; }
  /// Whether random layers act.
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

  /// A scalar.
  [[nodiscard]] Value constant(double value) { return call("constant", {}, {{"value", value}}); }

  /// Calls an op. Without a name the node is called as the parameters that it reads, or as the op.
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

  /// The same, for an op with one result.
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

  /// The layer of what follows: -1 before the first, the number of layers behind the last.
  void set_layer(std::int64_t layer) {
    make_sums();
    detail::call_host(
        [&](sr_error* error) { return writer_.set_layer(writer_.self, static_cast<std::int32_t>(layer), error); });
  }

  /// Names of what follows begin with `scope/`; "": with nothing.
  void set_scope(const std::string& scope) {
    make_sums();
    detail::call_host([&](sr_error* error) {
      return writer_.set_scope(writer_.self, scope.empty() ? nullptr : scope.c_str(), error);
    });
  }

  /// The state's value after the function.
  void write(const std::string& state, const Value& value) {
    const std::uint32_t number = number_of(value);
    detail::call_host([&](sr_error* error) { return writer_.write(writer_.self, state.c_str(), number, error); });
  }

  /// A tensor that the host reads after a call. A run saves those of `iterate` as outputs/NAME.npy.
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

  /// The host's number of a value. Makes a sum that is not made yet.
  std::uint32_t number_of(const Value& value, const std::string& name = {}) {
    value.require_set();
    Value::Node& node = *value.node_;
    if (node.number == 0) {
      node.number = make_sum(node.terms, name);
      node.terms.clear();
    }
    return node.number;
  }

  /// A sum of two values is the op add. Multiples of values of one rank are added up by linear_combination; the op add
  /// then adds those that lack leading dimensions.
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

  /// Makes the sums that something still holds, before the layer or scope changes.
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
  bool training_;
  std::vector<std::weak_ptr<Value::Node>> sums_;  ///< that may not be made yet
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
