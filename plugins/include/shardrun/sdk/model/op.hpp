#pragma once

/// An op that a model brings, as a small C++ class:
///
///     struct Swish {
///       static constexpr const char* name = "swish";
///       static constexpr const char* help = "x / (1 + exp(-slope x))";
///       static constexpr const char* rule = "b* -> b*";
///       static std::vector<OpAttribute> attributes() { return {number_attribute("slope", "…", 1.5)}; }
///
///       template <class Real>  // float, and double for the kernel that verify compares with
///       static void kernel(const KernelCall<Real>& call);
///       static Value gradient(Function& f, const GradientRequest& request);
///     };
///
/// The model lists its ops by `static auto ops() { return own_ops<Swish>(); }`, and calls one by `f.call("swish", {x},
/// {{"slope", 2.0}})`. sr_model_op of shardrun/model.h says what rules, kernels and gradients are. These members may be
/// left out:
///
///     static std::vector<OpAttribute> attributes();
///     static std::vector<OpOperand> operands();             // without it all are real numbers
///     static std::vector<std::uint32_t> result_elements();  // SR_ELEMENT_...; without it all are 0
///     static constexpr std::uint32_t min_operands = 2;      // a call may leave out the others
///     static constexpr const char* sizes = "c=3";           // of factors, for checks
///     template <class Real> static std::size_t scratch(const KernelCall<Real>& call);  // elements of type Real
///     static Value gradient(Function& f, const GradientRequest& request);  // without it no loss may depend on the op

#include <shardrun/model.h>
#include <shardrun/sdk/model/function.hpp>
#include <shardrun/sdk/plugin.hpp>

#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace shardrun::sdk {

/// An operand. Checks draw its elements from [low, high).
struct OpOperand {
  Element element = Element::f32;
  double low = 0;  ///< if both are 0: from the normal distribution
  double high = 0;
};

/// Declares an attribute. `example` is the value that checks use.
struct OpAttribute {
  std::string help;
  Attribute example;
  std::int64_t minimum = 0;  ///< for an integer; if both are 0: no bounds
  std::int64_t maximum = 0;
  std::vector<std::string> choices = {};  ///< for a text; empty: any text
};

[[nodiscard]] inline OpAttribute integer_attribute(std::string name, std::string help, std::int64_t example,
                                                   std::int64_t minimum = 0, std::int64_t maximum = 0) {
  return {std::move(help), {std::move(name), example}, minimum, maximum};
}
[[nodiscard]] inline OpAttribute number_attribute(std::string name, std::string help, double example) {
  return {std::move(help), {std::move(name), example}};
}
[[nodiscard]] inline OpAttribute text_attribute(std::string name, std::string help, std::string example,
                                                std::vector<std::string> choices = {}) {
  return {std::move(help), {std::move(name), std::move(example)}, 0, 0, std::move(choices)};
}

/// The attributes of a call of an op. A name that the op does not declare throws std::logic_error.
class OpAttributes {
 public:
  OpAttributes(const sr_attribute* attributes, std::uint32_t count, std::uint32_t stride)
      : attributes_(attributes), count_(count), stride_(stride) {}

  [[nodiscard]] std::int64_t integer(const char* name) const { return find(name).integer; }
  [[nodiscard]] double number(const char* name) const { return find(name).number; }
  [[nodiscard]] std::string text(const char* name) const { return find(name).text; }
  [[nodiscard]] std::span<const double> numbers(const char* name) const {
    return {find(name).numbers, find(name).count};
  }
  [[nodiscard]] std::span<const std::int64_t> integers(const char* name) const {
    return {find(name).integers, find(name).count};
  }

 private:
  [[nodiscard]] const sr_attribute& find(const std::string& name) const {
    for (std::uint32_t a = 0; a < count_; ++a) {
      const auto* const attribute = reinterpret_cast<const sr_attribute*>(
          reinterpret_cast<const unsigned char*>(attributes_) + std::size_t{stride_} * a);
      if (name == attribute->name) {
        return *attribute;
      }
    }
    throw std::logic_error("the op declares no attribute '" + name + "'");
  }

  const sr_attribute* attributes_;
  std::uint32_t count_;
  std::uint32_t stride_;
};

/// A tensor of a kernel, or one shard of one. Its elements are in row-major order without gaps.
class OpTensor {
 public:
  explicit OpTensor(const sr_tensor_view& raw) : raw_(raw) {}

  [[nodiscard]] std::uint32_t rank() const noexcept { return raw_.rank; }
  /// The size of a dimension. A negative number counts dimensions from the last.
  [[nodiscard]] std::int64_t size(int dim) const noexcept { return raw_.shape[at(dim)]; }
  /// The index of the shard's first element in the whole tensor, and the size of the whole tensor.
  [[nodiscard]] std::int64_t origin(int dim) const noexcept { return raw_.origin[at(dim)]; }
  [[nodiscard]] std::int64_t whole(int dim) const noexcept { return raw_.whole[at(dim)]; }
  [[nodiscard]] std::int64_t elements() const noexcept {
    std::int64_t count = 1;
    for (std::uint32_t d = 0; d < raw_.rank; ++d) {
      count *= raw_.shape[d];
    }
    return count;
  }
  [[nodiscard]] void* data() const noexcept { return raw_.data; }

 private:
  [[nodiscard]] std::uint32_t at(int dim) const noexcept {
    return static_cast<std::uint32_t>(dim < 0 ? dim + static_cast<int>(raw_.rank) : dim);
  }

  const sr_tensor_view& raw_;
};

/// One execution of a kernel whose real numbers have type `Real`: float or double.
template <class Real>
class KernelCall {
 public:
  explicit KernelCall(const sr_kernel_call& raw) : raw_(raw) {}

  [[nodiscard]] std::size_t operands() const noexcept { return raw_.operand_count; }
  [[nodiscard]] OpTensor operand(std::size_t index) const { return view(raw_.operands, raw_.operand_stride, index); }
  [[nodiscard]] OpTensor result(std::size_t index = 0) const { return view(raw_.results, raw_.result_stride, index); }
  [[nodiscard]] const Real* reals(std::size_t operand) const {
    return static_cast<const Real*>(this->operand(operand).data());
  }
  [[nodiscard]] const std::int32_t* integers(std::size_t operand) const {
    return static_cast<const std::int32_t*>(this->operand(operand).data());
  }
  /// The elements of a result, as type Real or std::int32_t. The kernel writes all of them.
  template <class T = Real>
  [[nodiscard]] T* results(std::size_t index = 0) const {
    return static_cast<T*>(result(index).data());
  }
  [[nodiscard]] OpAttributes attributes() const {
    return {raw_.attributes, raw_.attribute_count, raw_.attribute_stride};
  }
  [[nodiscard]] Real* scratch() const noexcept { return static_cast<Real*>(raw_.scratch); }

  /// Calls body(begin, end) for ranges that together cover [0, count), on the rank's threads. A range has at least
  /// `grain` indices, except the last. `body` must not throw.
  template <class Body>
  void split(std::int64_t count, std::int64_t grain, const Body& body) const {
    raw_.split(
        raw_.self, count, grain,
        [](void* argument, std::int64_t begin, std::int64_t end) { (*static_cast<const Body*>(argument))(begin, end); },
        const_cast<Body*>(&body));
  }

 private:
  [[nodiscard]] static OpTensor view(const sr_tensor_view* views, std::uint32_t stride, std::size_t index) {
    return OpTensor(
        *reinterpret_cast<const sr_tensor_view*>(reinterpret_cast<const unsigned char*>(views) + stride * index));
  }

  const sr_kernel_call& raw_;
};

/// A request for the gradient of an op with respect to one operand.
struct GradientRequest {
  std::size_t operand = 0;  ///< the index of this operand
  std::vector<Value> operands;
  std::vector<Value> results;
  std::vector<Value> result_gradients;  ///< one per result; without Value::exists() if nothing flows back into it
  OpAttributes attributes;
};

namespace detail {

/// Converts between values and the host's numbers.
struct ValueNumbers {
  static Value value(Function& f, std::uint32_t number) { return number == 0 ? Value() : f.value_of(number); }
  static std::uint32_t number(Function& f, const Value& value) { return value.exists() ? f.number_of(value) : 0; }
  static std::vector<Value> values(Function& f, const std::uint32_t* numbers, std::uint32_t count) {
    std::vector<Value> made;
    for (std::uint32_t i = 0; i < count; ++i) {
      made.push_back(value(f, numbers[i]));
    }
    return made;
  }
};

template <class Class>
concept HasAttributes = requires {
  { Class::attributes() } -> std::convertible_to<std::vector<OpAttribute>>;
};
template <class Class>
concept HasOperands = requires {
  { Class::operands() } -> std::convertible_to<std::vector<OpOperand>>;
};
template <class Class>
concept HasResultElements = requires {
  { Class::result_elements() } -> std::convertible_to<std::vector<std::uint32_t>>;
};
template <class Class>
concept HasGradient = requires(Function& f, const GradientRequest& request) {
  { Class::gradient(f, request) } -> std::convertible_to<Value>;
};
template <class Class>
concept HasScratch = requires(const KernelCall<float>& call) {
  { Class::scratch(call) } -> std::convertible_to<std::size_t>;
};

template <class Class>
struct OpFunctions {
  template <class Real>
  static std::int32_t kernel(void*, const sr_kernel_call* call, sr_error* error) noexcept {
    return guarded(error, [&] { Class::kernel(KernelCall<Real>(*call)); });
  }

  /// The host asks for both kernels, whose tensors have different real types. A call without real tensors is float's.
  static std::uint64_t scratch(void*, const sr_kernel_call* call) noexcept {
    if constexpr (HasScratch<Class>) {
      const auto is_double = [](const sr_tensor_view* views, std::uint32_t stride, std::uint32_t count) {
        for (std::uint32_t i = 0; i < count; ++i) {
          const auto* const view = reinterpret_cast<const sr_tensor_view*>(
              reinterpret_cast<const unsigned char*>(views) + std::size_t{stride} * i);
          if (view->element == SR_ELEMENT_F64) {
            return true;
          }
        }
        return false;
      };
      if (is_double(call->operands, call->operand_stride, call->operand_count) ||
          is_double(call->results, call->result_stride, call->result_count)) {
        return Class::scratch(KernelCall<double>(*call)) * sizeof(double);
      }
      return Class::scratch(KernelCall<float>(*call)) * sizeof(float);
    }
    return 0;
  }

  static std::int32_t gradient(void*, const sr_gradient_request* raw, const sr_function_writer* writer,
                               std::uint32_t* gradient, sr_error* error) noexcept {
    return guarded(error, [&] {
      if constexpr (HasGradient<Class>) {
        Function f(*writer, 0, false);
        const GradientRequest request = {raw->operand,
                                         ValueNumbers::values(f, raw->operands, raw->operand_count),
                                         ValueNumbers::values(f, raw->results, raw->result_count),
                                         ValueNumbers::values(f, raw->result_gradients, raw->result_count),
                                         {raw->attributes, raw->attribute_count, raw->attribute_stride}};
        *gradient = ValueNumbers::number(f, Class::gradient(f, request));
      }
    });
  }
};

/// The lists to which an sr_model_op points.
struct OpLists {
  std::vector<OpAttribute> attributes;
  std::vector<std::vector<const char*>> choices;
  std::vector<sr_attribute_spec> raw_attributes;
  std::vector<sr_attribute> example;
  std::vector<sr_operand> operands;
  std::vector<std::uint32_t> results;
};

inline void add_attributes(sr_model_op& op, OpLists& lists) {
  lists.choices.resize(lists.attributes.size());
  for (std::size_t a = 0; a < lists.attributes.size(); ++a) {
    const OpAttribute& attribute = lists.attributes[a];
    for (const std::string& choice : attribute.choices) {
      lists.choices[a].push_back(choice.c_str());
    }
    lists.example.push_back(raw_attribute(attribute.example));
    lists.raw_attributes.push_back({sizeof(sr_attribute_spec), lists.example.back().type, lists.example.back().name,
                                    attribute.help.c_str(), attribute.minimum, attribute.maximum,
                                    lists.choices[a].data(), static_cast<std::uint32_t>(lists.choices[a].size()), 0});
  }
  op.attributes = lists.raw_attributes.data();
  op.attribute_count = static_cast<std::uint32_t>(lists.raw_attributes.size());
  op.attribute_stride = sizeof(sr_attribute_spec);
  op.example = lists.example.data();
  op.example_count = op.attribute_count;
  op.example_stride = sizeof(sr_attribute);
}

inline void add_operands(sr_model_op& op, OpLists& lists, const std::vector<OpOperand>& operands) {
  for (const OpOperand& operand : operands) {
    lists.operands.push_back(
        {sizeof(sr_operand), static_cast<std::uint32_t>(operand.element), operand.low, operand.high});
  }
  op.operands = lists.operands.data();
  op.operand_count = static_cast<std::uint32_t>(lists.operands.size());
  op.operand_stride = sizeof(sr_operand);
}

/// Declares as many operands as the rule has, all of real numbers.
[[nodiscard]] inline std::vector<OpOperand> real_operands(const std::string& rule) {
  const auto arrow = rule.begin() + static_cast<std::ptrdiff_t>(std::min(rule.find("->"), rule.size()));
  return std::vector<OpOperand>(static_cast<std::size_t>(std::count(rule.begin(), arrow, ',')) + 1);
}

template <class Class>
[[nodiscard]] sr_model_op op_of() {
  static OpLists lists;
  sr_model_op op{};
  op.struct_size = sizeof(op);
  op.name = Class::name;
  op.help = Class::help;
  op.rule = Class::rule;
  if constexpr (requires { Class::min_operands; }) {
    op.min_operands = Class::min_operands;
  }
  if constexpr (requires { Class::sizes; }) {
    op.sizes = Class::sizes;
  }
  if constexpr (HasAttributes<Class>) {
    lists.attributes = Class::attributes();
  }
  add_attributes(op, lists);
  if constexpr (HasOperands<Class>) {
    add_operands(op, lists, Class::operands());
  } else {
    add_operands(op, lists, real_operands(Class::rule));
  }
  if constexpr (HasResultElements<Class>) {
    lists.results = Class::result_elements();
    op.result_elements = lists.results.data();
    op.result_count = static_cast<std::uint32_t>(lists.results.size());
  }
  op.kernel = OpFunctions<Class>::template kernel<float>;
  op.kernel_f64 = OpFunctions<Class>::template kernel<double>;
  op.scratch_bytes = HasScratch<Class> ? OpFunctions<Class>::scratch : nullptr;
  op.gradient = HasGradient<Class> ? OpFunctions<Class>::gradient : nullptr;
  return op;
}

}  // namespace detail

/// The ops of a model, one class each. Call it once per list of classes.
template <class... Classes>
[[nodiscard]] std::vector<sr_model_op> own_ops() {
  return {detail::op_of<Classes>()...};
}

}  // namespace shardrun::sdk
