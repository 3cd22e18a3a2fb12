#pragma once

#include <cstddef>
#include <initializer_list>

#include "core/base/on_device.h"
#include "core/graph/attributes.h"

/// Elementwise ops, each declared once by its name, formula and derivative. The graph derives the op's sharding rule
/// and gradient from this (ops/formulas.cpp), and each device its kernels.
///
/// A formula is a template over the numbers that it computes with. `Math::Number` is a double on the reference device,
/// and a vector of floats in fast kernels, where `condition ? a : b` chooses per element. `Math::exp` and the like are
/// functions of such numbers. Literals end in F and are exact in float32; other constants are `Math::constant(…)`.
///
/// The derivative of a formula of one operand is one of
/// - `backward(dy, x)`
/// - `backward_from_result(dy, y)`, where y is the op's result.
/// A formula of two operands has `backward_a(dy, a, b)` and `backward_b(dy, a, b)`. A formula without these has no
/// gradient, or one that ops/formulas.cpp builds from other ops.
namespace shardrun::graph::formulas {

#define SHARDRUN_FORMULA_MEMBER [[gnu::always_inline]] SHARDRUN_ON_BOTH
#define SHARDRUN_FORMULA SHARDRUN_FORMULA_MEMBER static

struct RealAttribute {
  const char* name;
  const char* help;
  double example;
};

struct Unary {
  static constexpr std::size_t operands = 1;
  static constexpr std::initializer_list<std::size_t> linear_in = {};  ///< the operands in which the formula is linear
  /// Whether the formula is linear in all its operands jointly.
  static constexpr bool linear_together = false;
};
struct Binary : Unary {
  static constexpr std::size_t operands = 2;
};

template <typename Math, typename Number = typename Math::Number>
struct Negate : Unary {
  static constexpr const char* name = "negate";
  static constexpr const char* formula = "-x";
  static constexpr std::initializer_list<std::size_t> linear_in = {0};
  SHARDRUN_FORMULA Number value(Number x) { return -x; }
};

template <typename Math, typename Number = typename Math::Number>
struct Relu : Unary {
  static constexpr const char* name = "relu";
  static constexpr const char* formula = "x where x > 0, else 0";
  SHARDRUN_FORMULA Number value(Number x) { return x <= 0.0F ? Number{} : x; }  // the comparison lets NaN stay NaN
  SHARDRUN_FORMULA Number backward_from_result(Number dy, Number y) { return y > 0.0F ? dy : Number{}; }
};

template <typename Math, typename Number = typename Math::Number>
struct Sin : Unary {
  static constexpr const char* name = "sin";
  static constexpr const char* formula = "sin(x)";
  SHARDRUN_FORMULA Number value(Number x) { return Math::sin(x); }
};

template <typename Math, typename Number = typename Math::Number>
struct Cos : Unary {
  static constexpr const char* name = "cos";
  static constexpr const char* formula = "cos(x)";
  SHARDRUN_FORMULA Number value(Number x) { return Math::cos(x); }
};

template <typename Math, typename Number = typename Math::Number>
struct Exp : Unary {
  static constexpr const char* name = "exp";
  static constexpr const char* formula = "e^x";
  SHARDRUN_FORMULA Number value(Number x) { return Math::exp(x); }
  SHARDRUN_FORMULA Number backward_from_result(Number dy, Number y) { return dy * y; }
};

template <typename Math, typename Number = typename Math::Number>
struct Log : Unary {
  static constexpr const char* name = "log";
  static constexpr const char* formula = "the natural logarithm of x";
  SHARDRUN_FORMULA Number value(Number x) { return Math::log(x); }
  SHARDRUN_FORMULA Number backward(Number dy, Number x) { return dy / x; }
};

template <typename Math, typename Number = typename Math::Number>
struct Sqrt : Unary {
  static constexpr const char* name = "sqrt";
  static constexpr const char* formula = "x^(1/2)";
  SHARDRUN_FORMULA Number value(Number x) { return Math::sqrt(x); }
  SHARDRUN_FORMULA Number backward_from_result(Number dy, Number y) { return dy * 0.5F / y; }
};

template <typename Math, typename Number = typename Math::Number>
struct Rsqrt : Unary {
  static constexpr const char* name = "rsqrt";
  static constexpr const char* formula = "x^(-1/2)";
  SHARDRUN_FORMULA Number value(Number x) { return 1.0F / Math::sqrt(x); }
  SHARDRUN_FORMULA Number backward_from_result(Number dy, Number y) { return dy * -0.5F * (y * y * y); }
};

template <typename Math, typename Number = typename Math::Number>
struct Tanh : Unary {
  static constexpr const char* name = "tanh";
  static constexpr const char* formula = "tanh(x)";
  SHARDRUN_FORMULA Number value(Number x) { return Math::tanh(x); }
  SHARDRUN_FORMULA Number backward_from_result(Number dy, Number y) { return dy * (1.0F - y * y); }
};

template <typename Math, typename Number = typename Math::Number>
struct Sigmoid : Unary {
  static constexpr const char* name = "sigmoid";
  static constexpr const char* formula = "1 / (1 + e^-x)";
  SHARDRUN_FORMULA Number value(Number x) { return 1.0F / (1.0F + Math::exp(-x)); }
  SHARDRUN_FORMULA Number backward_from_result(Number dy, Number y) { return dy * (y * (1.0F - y)); }
};

template <typename Math, typename Number = typename Math::Number>
struct Erf : Unary {
  static constexpr const char* name = "erf";
  static constexpr const char* formula = "2/sqrt(pi) times the integral of e^(-t^2) from 0 to x";
  SHARDRUN_FORMULA Number value(Number x) { return Math::erf(x); }
  SHARDRUN_FORMULA Number backward(Number dy, Number x) {
    return dy * Math::constant(1.1283791670955125739) * Math::exp(-(x * x));  // 2/sqrt(pi)
  }
};

/// Hendrycks & Gimpel 2016, arXiv:1606.08415, section 2; Elfwing et al. 2017, arXiv:1702.03118.
template <typename Math, typename Number = typename Math::Number>
struct Silu : Unary {
  static constexpr const char* name = "silu";
  static constexpr const char* formula = "x / (1 + e^-x)";
  SHARDRUN_FORMULA Number value(Number x) { return x / (1.0F + Math::exp(-x)); }
  SHARDRUN_FORMULA Number backward(Number dy, Number x) {
    const Number s = 1.0F / (1.0F + Math::exp(-x));
    return dy * (s * (1.0F + x * (1.0F - s)));
  }
};

template <typename Math, typename Number = typename Math::Number>
struct Abs : Unary {
  static constexpr const char* name = "abs";
  static constexpr const char* formula = "|x|";
  SHARDRUN_FORMULA Number value(Number x) { return x < 0.0F ? -x : x; }
  SHARDRUN_FORMULA Number backward(Number dy, Number x) { return x > 0.0F ? dy : x < 0.0F ? -dy : Number{}; }
};

template <typename Math, typename Number = typename Math::Number>
struct Sign : Unary {
  static constexpr const char* name = "sign";
  static constexpr const char* formula = "-1, 0 or 1, as x is negative, zero or positive";
  SHARDRUN_FORMULA Number value(Number x) { return x > 0.0F ? Math::constant(1) : x < 0.0F ? Math::constant(-1) : x; }
};

template <typename Math, typename Number = typename Math::Number>
struct Clamp : Unary {
  static constexpr const char* name = "clamp";
  static constexpr const char* formula = "low where x < low, high where x > high, else x";
  static constexpr RealAttribute attributes[] = {{"low", "the smallest result", -1}, {"high", "the largest", 1}};
  [[gnu::always_inline]] explicit Clamp(const Attributes& attributes)
      : low(Math::constant(attributes.real("low"))), high(Math::constant(attributes.real("high"))) {}
  SHARDRUN_FORMULA_MEMBER Number value(Number x) const { return x < low ? low : x > high ? high : x; }
  SHARDRUN_FORMULA_MEMBER Number backward(Number dy, Number x) const {
    return x < low ? Number{} : x > high ? Number{} : dy;
  }
  Number low;
  Number high;
};

template <typename Math, typename Number = typename Math::Number>
struct Add : Binary {
  static constexpr const char* name = "add";
  static constexpr const char* formula = "a + b";
  static constexpr bool linear_together = true;
  SHARDRUN_FORMULA Number value(Number a, Number b) { return a + b; }
};

template <typename Math, typename Number = typename Math::Number>
struct Subtract : Binary {
  static constexpr const char* name = "subtract";
  static constexpr const char* formula = "a - b";
  static constexpr bool linear_together = true;
  SHARDRUN_FORMULA Number value(Number a, Number b) { return a - b; }
};

template <typename Math, typename Number = typename Math::Number>
struct Multiply : Binary {
  static constexpr const char* name = "multiply";
  static constexpr const char* formula = "a b";
  static constexpr std::initializer_list<std::size_t> linear_in = {0, 1};
  SHARDRUN_FORMULA Number value(Number a, Number b) { return a * b; }
};

template <typename Math, typename Number = typename Math::Number>
struct Divide : Binary {
  static constexpr const char* name = "divide";
  static constexpr const char* formula = "a / b";
  static constexpr std::initializer_list<std::size_t> linear_in = {0};
  SHARDRUN_FORMULA Number value(Number a, Number b) { return a / b; }
  SHARDRUN_FORMULA Number backward_a(Number dy, Number, Number b) { return dy / b; }
  SHARDRUN_FORMULA Number backward_b(Number dy, Number a, Number b) { return -(dy * (a / b)) / b; }
};

template <typename Math, typename Number = typename Math::Number>
struct Power : Binary {
  static constexpr const char* name = "power";
  static constexpr const char* formula = "a^b";
  SHARDRUN_FORMULA Number value(Number a, Number b) { return Math::power(a, b); }
  SHARDRUN_FORMULA Number backward_a(Number dy, Number a, Number b) {
    return b == 0.0F ? Number{} : dy * b * Math::power(a, b - 1.0F);
  }
  SHARDRUN_FORMULA Number backward_b(Number dy, Number a, Number b) {
    return a == 0.0F ? Number{} : dy * Math::power(a, b) * Math::log(a);
  }
};

/// The result is NaN if an operand is. Equal operands share the gradient. Both hold for Maximum, too.
template <typename Math, typename Number = typename Math::Number>
struct Minimum : Binary {
  static constexpr const char* name = "minimum";
  static constexpr const char* formula = "the smaller of a and b";
  SHARDRUN_FORMULA Number value(Number a, Number b) { return a < b ? a : b <= a ? b : a + b; }
  SHARDRUN_FORMULA Number backward_a(Number dy, Number a, Number b) {
    return a < b ? dy : b < a ? Number{} : dy * 0.5F;
  }
  SHARDRUN_FORMULA Number backward_b(Number dy, Number a, Number b) { return backward_a(dy, b, a); }
};

template <typename Math, typename Number = typename Math::Number>
struct Maximum : Binary {
  static constexpr const char* name = "maximum";
  static constexpr const char* formula = "the larger of a and b";
  SHARDRUN_FORMULA Number value(Number a, Number b) { return a > b ? a : b >= a ? b : a + b; }
  SHARDRUN_FORMULA Number backward_a(Number dy, Number a, Number b) {
    return a > b ? dy : b > a ? Number{} : dy * 0.5F;
  }
  SHARDRUN_FORMULA Number backward_b(Number dy, Number a, Number b) { return backward_a(dy, b, a); }
};

template <typename Math, typename Number = typename Math::Number>
struct Equal : Binary {
  static constexpr const char* name = "equal";
  static constexpr const char* formula = "1 where a = b, else 0";
  SHARDRUN_FORMULA Number value(Number a, Number b) { return a == b ? Math::constant(1) : Number{}; }
};

template <typename Math, typename Number = typename Math::Number>
struct NotEqual : Binary {
  static constexpr const char* name = "not_equal";
  static constexpr const char* formula = "0 where a = b, else 1";
  SHARDRUN_FORMULA Number value(Number a, Number b) { return a != b ? Math::constant(1) : Number{}; }
};

template <typename Math, typename Number = typename Math::Number>
struct Less : Binary {
  static constexpr const char* name = "less";
  static constexpr const char* formula = "1 where a < b, else 0";
  SHARDRUN_FORMULA Number value(Number a, Number b) { return a < b ? Math::constant(1) : Number{}; }
};

template <typename Math, typename Number = typename Math::Number>
struct LessEqual : Binary {
  static constexpr const char* name = "less_equal";
  static constexpr const char* formula = "1 where a <= b, else 0";
  SHARDRUN_FORMULA Number value(Number a, Number b) { return a <= b ? Math::constant(1) : Number{}; }
};

template <typename Math, typename Number = typename Math::Number>
struct Greater : Binary {
  static constexpr const char* name = "greater";
  static constexpr const char* formula = "1 where a > b, else 0";
  SHARDRUN_FORMULA Number value(Number a, Number b) { return a > b ? Math::constant(1) : Number{}; }
};

template <typename Math, typename Number = typename Math::Number>
struct GreaterEqual : Binary {
  static constexpr const char* name = "greater_equal";
  static constexpr const char* formula = "1 where a >= b, else 0";
  SHARDRUN_FORMULA Number value(Number a, Number b) { return a >= b ? Math::constant(1) : Number{}; }
};

template <typename Math, typename Number = typename Math::Number>
struct Where : Unary {
  static constexpr std::size_t operands = 3;
  static constexpr const char* name = "where";
  static constexpr const char* formula = "a where the condition is not 0, else b";
  SHARDRUN_FORMULA Number value(Number condition, Number a, Number b) { return condition != 0.0F ? a : b; }
};

template <template <typename...> typename... Formula>
struct List {};
using All =
    List<Negate, Relu, Sin, Cos, Exp, Log, Sqrt, Rsqrt, Tanh, Sigmoid, Erf, Silu, Abs, Sign, Clamp, Add, Subtract,
         Multiply, Divide, Power, Minimum, Maximum, Equal, NotEqual, Less, LessEqual, Greater, GreaterEqual, Where>;

/// Makes a formula from the values of its attributes.
template <typename Formula>
[[gnu::always_inline]] inline Formula made_of([[maybe_unused]] const Attributes& attributes) {
  if constexpr (requires { Formula(attributes); }) {
    return Formula(attributes);
  } else {
    return {};
  }
}

template <typename Formula>
constexpr bool reads_operand = requires {
  &Formula::backward;
};
template <typename Formula>
constexpr bool reads_result = requires {
  &Formula::backward_from_result;
};
template <typename Formula>
constexpr bool reads_both = requires {
  &Formula::backward_a;
};
template <typename Formula>
constexpr bool has_backward = reads_operand<Formula> || reads_result<Formula> || reads_both<Formula>;

}  // namespace shardrun::graph::formulas
