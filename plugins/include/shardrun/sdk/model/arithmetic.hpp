#pragma once

/// Elementwise mathematics of values. An operand that lacks leading dimensions of the other is repeated along them. A
/// number stands for a tensor of equal elements. A comparison is 1 if it holds, else 0.
///
///     const Value alive = where(neighbours == 3, 1, where(neighbours == 2, cells, 0));

#include <shardrun/sdk/model/function.hpp>

#include <string>

namespace shardrun::sdk {

namespace detail {

[[nodiscard]] inline Value unary(const char* op, const Value& x) { return x.function().call(op, {x}); }
[[nodiscard]] inline Value binary(const char* op, const Value& a, const Value& b) {
  return a.function().call(op, {a, b});
}

/// An operand that may be given as a value or as a number.
class Operand {
 public:
  Operand(const Value& value) : value_(value), is_value_(true) {}  // NOLINT(google-explicit-constructor)
  Operand(double number) : number_(number) {}                      // NOLINT(google-explicit-constructor)

  [[nodiscard]] Value in(Function& function) const { return is_value_ ? value_ : function.constant(number_); }

 private:
  Value value_;
  double number_ = 0;
  bool is_value_ = false;
};

}  // namespace detail

[[nodiscard]] inline Value operator+(const Value& a, double b) { return a + a.function().constant(b); }
[[nodiscard]] inline Value operator+(double a, const Value& b) { return b + a; }
[[nodiscard]] inline Value operator-(const Value& a, double b) { return a + -b; }
[[nodiscard]] inline Value operator-(double a, const Value& b) { return -b + a; }
[[nodiscard]] inline Value operator/(const Value& a, const Value& b) { return detail::binary("divide", a, b); }
[[nodiscard]] inline Value operator/(const Value& a, double b) {
  return detail::binary("divide", a, a.function().constant(b));
}
[[nodiscard]] inline Value operator/(double a, const Value& b) {
  return detail::binary("divide", b.function().constant(a), b);
}

#define SHARDRUN_COMPARISON(symbol, op)                                                                           \
  [[nodiscard]] inline Value operator symbol(const Value& a, const Value& b) { return detail::binary(op, a, b); } \
  [[nodiscard]] inline Value operator symbol(const Value& a, double b) {                                          \
    return detail::binary(op, a, a.function().constant(b));                                                       \
  }                                                                                                               \
  [[nodiscard]] inline Value operator symbol(double a, const Value& b) {                                          \
    return detail::binary(op, b.function().constant(a), b);                                                       \
  }
SHARDRUN_COMPARISON(==, "equal")
SHARDRUN_COMPARISON(!=, "not_equal")
SHARDRUN_COMPARISON(<, "less")
SHARDRUN_COMPARISON(<=, "less_equal")
SHARDRUN_COMPARISON(>, "greater")
SHARDRUN_COMPARISON(>=, "greater_equal")
#undef SHARDRUN_COMPARISON

/// a in elements whose condition is not 0, else b.
[[nodiscard]] inline Value where(const Value& condition, const detail::Operand& a, const detail::Operand& b) {
  Function& f = condition.function();
  return f.call("where", {condition, a.in(f), b.in(f)});
}

[[nodiscard]] inline Value minimum(const Value& a, const detail::Operand& b) {
  return detail::binary("minimum", a, b.in(a.function()));
}
[[nodiscard]] inline Value maximum(const Value& a, const detail::Operand& b) {
  return detail::binary("maximum", a, b.in(a.function()));
}
/// a to the power of b.
[[nodiscard]] inline Value power(const Value& a, const detail::Operand& b) {
  return detail::binary("power", a, b.in(a.function()));
}
[[nodiscard]] inline Value clamp(const Value& x, double low, double high) {
  return x.function().call("clamp", {x}, {{"low", low}, {"high", high}});
}

[[nodiscard]] inline Value sin(const Value& x, const std::string& name = {}) {
  return x.function().call("sin", {x}, {}, name);
}
[[nodiscard]] inline Value cos(const Value& x, const std::string& name = {}) {
  return x.function().call("cos", {x}, {}, name);
}
[[nodiscard]] inline Value relu(const Value& x, const std::string& name = {}) {
  return x.function().call("relu", {x}, {}, name);
}
[[nodiscard]] inline Value exp(const Value& x) { return detail::unary("exp", x); }
[[nodiscard]] inline Value log(const Value& x) { return detail::unary("log", x); }
[[nodiscard]] inline Value sqrt(const Value& x) { return detail::unary("sqrt", x); }
/// 1 / sqrt(x)
[[nodiscard]] inline Value rsqrt(const Value& x) { return detail::unary("rsqrt", x); }
[[nodiscard]] inline Value tanh(const Value& x) { return detail::unary("tanh", x); }
[[nodiscard]] inline Value sigmoid(const Value& x) { return detail::unary("sigmoid", x); }
[[nodiscard]] inline Value erf(const Value& x) { return detail::unary("erf", x); }
[[nodiscard]] inline Value silu(const Value& x) { return detail::unary("silu", x); }
[[nodiscard]] inline Value abs(const Value& x) { return detail::unary("abs", x); }
[[nodiscard]] inline Value sign(const Value& x) { return detail::unary("sign", x); }

/// `tanh`: the approximate form of GPT-2; otherwise the exact form with erf.
[[nodiscard]] inline Value gelu(const Value& x, bool tanh = false, const std::string& name = {}) {
  return x.function().call("gelu", {x}, {{"form", tanh ? "tanh" : "erf"}}, name);
}

}  // namespace shardrun::sdk
