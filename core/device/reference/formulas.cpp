#include "core/graph/formulas.h"

#include <cmath>
#include <string>

#include "core/device/reference/views.h"

// The formulas of the elementwise ops, element by element. Operands can lack leading dimensions of the result.

namespace shardrun::device::reference {
namespace {

namespace formulas = graph::formulas;

struct Math {
  using Number = double;
  static double constant(double value) { return value; }
  static double sin(double x) { return std::sin(x); }
  static double cos(double x) { return std::cos(x); }
  static double exp(double x) { return std::exp(x); }
  static double log(double x) { return std::log(x); }
  static double sqrt(double x) { return std::sqrt(x); }
  static double tanh(double x) { return std::tanh(x); }
  static double erf(double x) { return std::erf(x); }
  static double power(double a, double b) { return std::pow(a, b); }
};

/// The operand's element for element i of the result. The operand is repeated over leading dimensions that it lacks.
double element(const TensorView& operand, std::int64_t i) { return reals(operand)[i % operand.elements()]; }

template <typename Formula>
void value(const KernelCall& call) {
  const auto formula = formulas::made_of<Formula>(call.attributes);
  const auto& x = call.inputs;
  for_each(call, call.outputs[0].elements(), 1, [&](std::int64_t i) {
    double& y = reals(call.outputs[0])[i];
    if constexpr (Formula::operands == 1) {
      y = formula.value(element(x[0], i));
    } else if constexpr (Formula::operands == 2) {
      y = formula.value(element(x[0], i), element(x[1], i));
    } else {
      y = formula.value(element(x[0], i), element(x[1], i), element(x[2], i));
    }
  });
}

template <typename Formula>
void gradient(const KernelCall& call) {
  const auto formula = formulas::made_of<Formula>(call.attributes);
  const auto& x = call.inputs;
  for_each(call, call.outputs[0].elements(), 1, [&](std::int64_t i) {
    const double dy = element(x[0], i);
    double& dx = reals(call.outputs[0])[i];
    if constexpr (formulas::reads_operand<Formula>) {
      dx = formula.backward(dy, element(x[1], i));
    } else if constexpr (formulas::reads_result<Formula>) {
      dx = formula.backward_from_result(dy, element(x[1], i));
    } else {
      const bool of_a = call.attributes.integer("operand") == 0;
      const double a = element(x[1], i);
      const double b = element(x[2], i);
      dx = of_a ? formula.backward_a(dy, a, b) : formula.backward_b(dy, a, b);
    }
  });
}

template <typename Formula>
void register_formula() {
  const RegisterKernel forward("reference", Formula::name, {.run = value<Formula>});
  if constexpr (formulas::has_backward<Formula>) {
    const RegisterKernel backward("reference", std::string(Formula::name) + "_gradient", {.run = gradient<Formula>});
  }
}

template <template <typename...> typename... Formula>
bool register_all(formulas::List<Formula...>) {
  (register_formula<Formula<Math>>(), ...);
  return true;
}

[[maybe_unused]] const bool registered = register_all(formulas::All{});

}  // namespace
}  // namespace shardrun::device::reference
