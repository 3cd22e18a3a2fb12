#include "core/graph/formulas.h"

#include <algorithm>

#include "core/graph/builder.h"
#include "core/graph/ops/shapes.h"

// The ops of formulas.h. An operand may lack leading dimensions of the result: it is broadcast over them.

namespace shardrun::graph {
namespace {

/// Stands for `Math` where only the declarations of a formula are read.
struct Declared {
  using Number = double;
};
using formulas::List;

/// One factor per dimension of the result. The result has the type of the first operand that is not broadcast.
ShardingRule broadcasting_rule(const char* op, const Operands& inputs, std::size_t operands) {
  require_reals(op, inputs);
  std::size_t dimensions = 0;
  for (const TensorType& input : inputs) {
    dimensions = std::max(dimensions, input.shape.size());
  }
  std::string text;
  for (std::size_t i = 0; i < operands; ++i) {
    text += i == 0 ? "" : ",";
    text += rank(inputs, i) == 0 ? "." : "";
    for (std::size_t d = dimensions - rank(inputs, i); d < dimensions; ++d) {
      text += fmt::format(" a{}", d);
    }
  }
  ShardingRule rule = parse_rule(fmt::format("{}->a*{}", text, dimensions));
  const auto full =
      std::ranges::find_if(inputs, [&](const TensorType& type) { return type.shape.size() == dimensions; });
  rule.dtypes = {full == inputs.end() ? std::nullopt : std::optional(full->dtype)};
  return rule;
}

template <typename Formula>
ShardingRule rule_of(const Attributes&, const Operands& inputs) {
  ShardingRule rule = broadcasting_rule(Formula::name, inputs, Formula::operands);
  if (Formula::linear_together) {
    rule.linearity = Linearity::together;
  } else if (Formula::linear_in.size() > 0) {
    rule = linear_in(std::move(rule), {Formula::linear_in.begin(), Formula::linear_in.end()});
  }
  return rule;
}

/// Sums a gradient over the leading dimensions that the operand lacks.
ValueId summed_for(FunctionBuilder& builder, ValueId gradient, ValueId operand) {
  const std::size_t kept = builder.type(operand).shape.size();
  if (kept == builder.type(gradient).shape.size()) {
    return gradient;
  }
  return builder.call("sum_leading", {gradient}, {{"keep", static_cast<std::int64_t>(kept)}});
}

template <typename Formula>
std::string gradient_name() {
  return fmt::format("{}_gradient", Formula::name);
}

/// The gradient, computed by a kernel that is generated from the formula's derivative.
template <typename Formula>
ValueId own_gradient(FunctionBuilder& builder, const GradientRequest& request) {
  const ValueId dy = request.output_gradients[0];
  if constexpr (formulas::reads_both<Formula>) {
    const ValueId gradient = builder.call(gradient_name<Formula>(), {dy, request.inputs[0], request.inputs[1]},
                                          {{"operand", static_cast<std::int64_t>(request.input)}});
    return summed_for(builder, gradient, request.inputs[request.input]);
  } else {
    const ValueId at = formulas::reads_result<Formula> ? request.outputs[0] : request.inputs[0];
    return builder.call(gradient_name<Formula>(), {dy, at}, request.attributes);
  }
}

template <typename Formula>
ShardingRule own_gradient_rule(const Attributes&, const Operands& inputs) {
  return linear_in(broadcasting_rule(gradient_name<Formula>().c_str(), inputs, Formula::operands + 1), {0});
}

ValueId negate_gradient(FunctionBuilder& builder, const GradientRequest& request) {
  return builder.call("negate", {request.output_gradients[0]});
}

ValueId sin_gradient(FunctionBuilder& builder, const GradientRequest& request) {
  return builder.call("multiply", {request.output_gradients[0], builder.call("cos", {request.inputs[0]})});
}

ValueId cos_gradient(FunctionBuilder& builder, const GradientRequest& request) {
  return builder.call(
      "negate", {builder.call("multiply", {request.output_gradients[0], builder.call("sin", {request.inputs[0]})})});
}

ValueId add_gradient(FunctionBuilder& builder, const GradientRequest& request) {
  return summed_for(builder, request.output_gradients[0], request.inputs[request.input]);
}

ValueId subtract_gradient(FunctionBuilder& builder, const GradientRequest& request) {
  const ValueId dy = request.output_gradients[0];
  return summed_for(builder, request.input == 0 ? dy : builder.call("negate", {dy}), request.inputs[request.input]);
}

ValueId multiply_gradient(FunctionBuilder& builder, const GradientRequest& request) {
  const ValueId gradient = builder.call("multiply", {request.output_gradients[0], request.inputs[1 - request.input]});
  return summed_for(builder, gradient, request.inputs[request.input]);
}

/// The condition has no gradient.
ValueId where_gradient(FunctionBuilder& builder, const GradientRequest& request) {
  if (request.input == 0) {
    return {};
  }
  const ValueId zero = builder.call("constant", {}, {{"value", 0.0}});
  std::vector<ValueId> operands = {request.inputs[0], zero, zero};
  operands[request.input] = request.output_gradients[0];
  return summed_for(builder, builder.call("where", operands), request.inputs[request.input]);
}

using Gradient = ValueId (*)(FunctionBuilder&, const GradientRequest&);

/// The gradient of a formula without a derivative, built from other ops; null: none.
template <template <typename...> typename Formula>
constexpr Gradient composed_gradient = nullptr;
template <>
constexpr Gradient composed_gradient<formulas::Negate> = negate_gradient;
template <>
constexpr Gradient composed_gradient<formulas::Sin> = sin_gradient;
template <>
constexpr Gradient composed_gradient<formulas::Cos> = cos_gradient;
template <>
constexpr Gradient composed_gradient<formulas::Add> = add_gradient;
template <>
constexpr Gradient composed_gradient<formulas::Subtract> = subtract_gradient;
template <>
constexpr Gradient composed_gradient<formulas::Multiply> = multiply_gradient;
template <>
constexpr Gradient composed_gradient<formulas::Where> = where_gradient;

template <template <typename...> typename Formula>
void register_formula() {
  using Of = Formula<Declared>;
  Op op{.name = Of::name, .rule = rule_of<Of>, .gradient = composed_gradient<Formula>, .cheap = true};
  op.help = Of::formula;
  for (std::size_t i = 0; i < Of::operands; ++i) {
    op.in_place.emplace_back(0, i);
    op.example.operands.push_back(i == 0 ? example({2, 3}) : example({3}));
  }
  if constexpr (requires { Of::attributes; }) {
    for (const formulas::RealAttribute& attribute : Of::attributes) {
      op.attributes.push_back(AttributeSpec::real(attribute.name, attribute.help));
      op.example.attributes.add(attribute.name, attribute.example);
    }
  }
  op.stops_gradient = !formulas::has_backward<Of> && op.gradient == nullptr;  // true for comparisons and sign
  if constexpr (formulas::has_backward<Of>) {
    op.gradient = own_gradient<Of>;
    const RegisterOp backward({.name = gradient_name<Of>(), .rule = own_gradient_rule<Of>, .in_place = {{0, 0}}});
  }
  const RegisterOp forward(std::move(op));
}

template <template <typename...> typename... Formula>
bool register_all(List<Formula...>) {
  (register_formula<Formula>(), ...);
  return true;
}

[[maybe_unused]] const bool registered = register_all(formulas::All{});

}  // namespace
}  // namespace shardrun::graph
