#include "core/graph/formulas.h"

#include <string>

#include "core/device/cuda/elementwise.h"

// The kernels of all formulas, and of their derivatives.

namespace shardrun::device::cuda {
namespace {

namespace formulas = graph::formulas;

template <typename Formula>
struct Value {
  Formula formula;
  template <typename... Numbers>
  SHARDRUN_ON_DEVICE float operator()(Numbers... x) const {
    return formula.value(x...);
  }
};

enum class Derivative { of_operand, from_result, of_a, of_b };

template <typename Formula, Derivative derivative>
struct Backward {
  Formula formula;
  template <typename... Numbers>
  SHARDRUN_ON_DEVICE float operator()(float dy, Numbers... x) const {
    if constexpr (derivative == Derivative::of_operand) {
      return formula.backward(dy, x...);
    } else if constexpr (derivative == Derivative::from_result) {
      return formula.backward_from_result(dy, x...);
    } else if constexpr (derivative == Derivative::of_a) {
      return formula.backward_a(dy, x...);
    } else {
      return formula.backward_b(dy, x...);
    }
  }
};

template <typename Formula>
void value(const KernelCall& call) {
  map<static_cast<int>(Formula::operands)>(call, Value<Formula>{formulas::made_of<Formula>(call.attributes)});
}

template <typename Formula>
void gradient(const KernelCall& call) {
  const auto formula = formulas::made_of<Formula>(call.attributes);
  if constexpr (formulas::reads_operand<Formula>) {
    map<2>(call, Backward<Formula, Derivative::of_operand>{formula});
  } else if constexpr (formulas::reads_result<Formula>) {
    map<2>(call, Backward<Formula, Derivative::from_result>{formula});
  } else if (call.attributes.integer("operand") == 0) {
    map<3>(call, Backward<Formula, Derivative::of_a>{formula});
  } else {
    map<3>(call, Backward<Formula, Derivative::of_b>{formula});
  }
}

template <typename Formula>
void register_formula() {
  const RegisterKernel forward(device_name, Formula::name, {.run = value<Formula>});
  if constexpr (formulas::has_backward<Formula>) {
    const RegisterKernel backward(device_name, std::string(Formula::name) + "_gradient", {.run = gradient<Formula>});
  }
}

template <template <typename...> typename... Formula>
bool register_all(formulas::List<Formula...>) {
  (register_formula<Formula<FloatMath>>(), ...);
  return true;
}

[[maybe_unused]] const bool registered = register_all(formulas::All{});

}  // namespace
}  // namespace shardrun::device::cuda
