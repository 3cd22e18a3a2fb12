#include "core/graph/formulas.h"

#include "core/device/cpu/elementwise.h"
#include "core/device/cpu/vec_math.h"

// The kernels of all formulas, and of their derivatives.

namespace shardrun::device::cpu::SHARDRUN_KERNEL_VARIANT {
namespace {

namespace formulas = graph::formulas;

template <typename Formula>
void value(const KernelCall& call) {
  const auto formula = formulas::made_of<Formula>(call.attributes);
  map<Formula::operands>(call, [formula](auto... x) { return formula.value(x...); });
}

template <typename Formula>
void gradient(const KernelCall& call) {
  const auto formula = formulas::made_of<Formula>(call.attributes);
  if constexpr (formulas::reads_operand<Formula>) {
    map<2>(call, [formula](vec dy, vec x) { return formula.backward(dy, x); });
  } else if constexpr (formulas::reads_result<Formula>) {
    map<2>(call, [formula](vec dy, vec y) { return formula.backward_from_result(dy, y); });
  } else if (call.attributes.integer("operand") == 0) {
    map<3>(call, [formula](vec dy, vec a, vec b) { return formula.backward_a(dy, a, b); });
  } else {
    map<3>(call, [formula](vec dy, vec a, vec b) { return formula.backward_b(dy, a, b); });
  }
}

/// A gradient's name: "exp_gradient" for "exp".
struct Name {
  char text[32] = {};
};
consteval Name gradient_name(const char* op) {
  Name name;
  char* to = name.text;
  for (const char* part : {op, "_gradient"}) {
    while (*part != '\0') {
      *to++ = *part++;
    }
  }
  return name;
}
template <typename Formula>
constexpr Name name_of_gradient = gradient_name(Formula::name);

template <typename Formulas>
struct Table;
template <template <typename...> typename... Formula>
struct Table<formulas::List<Formula...>> {
  constexpr Table() {
    OpKernel* next = kernels;
    (add<Formula<VecMath>>(next), ...);
  }

  template <typename Of>
  constexpr void add(OpKernel*& next) {
    *next++ = {Of::name, {.run = value<Of>}};
    if constexpr (formulas::has_backward<Of>) {
      *next++ = {name_of_gradient<Of>.text, {.run = gradient<Of>}};
    }
  }

  OpKernel kernels[sizeof...(Formula) + (std::size_t{formulas::has_backward<Formula<VecMath>>} + ...)] = {};
};
constinit const Table<formulas::All> table;

}  // namespace
}  // namespace shardrun::device::cpu::SHARDRUN_KERNEL_VARIANT

SHARDRUN_KERNEL_TABLE(formulas, table.kernels)
