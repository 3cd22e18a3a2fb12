#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "core/device/device.h"
#include "core/graph/op.h"
#include "tests/support/tensor.h"

namespace shardrun::test {

/// One operand of a case: its type and how it is drawn.
struct Operand {
  graph::TensorType type;
  void (*fill)(Random& random, Tensor& tensor) = nullptr;
};

/// One use of an op. Every op of the registry has some; all kernel tests run over them.
struct Case {
  std::string op;
  graph::Attributes attributes;
  std::vector<Operand> operands;
  /// Replaces operands that are functions of the others (a row's maximum, a norm's mean). Null: none are.
  void (*derive)(std::vector<Tensor>& inputs) = nullptr;
  /// A factor for the error that is allowed for rounding in float. Larger than 1 if operands nearly cancel each other.
  double condition = 1;
};

/// "matmul {contract=1} f32[a0 3, a1 5], f32[a0 5, a1 7]"
[[nodiscard]] std::string to_string(const Case& test);

[[nodiscard]] std::vector<Case> cases_of(std::string_view op);

/// Elements of the largest operand, for tests that take the smaller cases only.
[[nodiscard]] std::int64_t largest_operand(const Case& test);

/// A case ready to run: operands drawn (every element exact in its type, and in float),
/// result types from the op's own rule.
struct Prepared {
  const graph::Op* op;
  graph::Attributes attributes;
  graph::ShardingRule rule;
  std::vector<Tensor> inputs;
  std::vector<Tensor> outputs;  ///< zeros
};
[[nodiscard]] Prepared prepare(const Case& test, std::uint64_t seed = 1);

/// Scalars for a call, with values that make every field matter.
[[nodiscard]] device::Scalars scalars_of_tests();

// How operands are written in the tables of cases.
using Shape = std::vector<std::int64_t>;
[[nodiscard]] Operand normal(Shape shape);
[[nodiscard]] Operand off_centre(Shape shape);      ///< mean 10, deviation 1
[[nodiscard]] Operand positive(Shape shape);        ///< between 0.5 and 20
[[nodiscard]] Operand few_values(Shape shape);      ///< 0 or 1
[[nodiscard]] Operand small_positive(Shape shape);  ///< between 0 and 0.1
template <std::int32_t limit>
[[nodiscard]] Operand integers_below(Shape shape) {
  return {type_of(std::move(shape), graph::DType::i32),
          [](Random& random, Tensor& tensor) { random.fill_integers(tensor, limit); }};
}

void add_elementwise_cases(std::vector<Case>& cases);
void add_dimension_cases(std::vector<Case>& cases);
void add_formula_cases(std::vector<Case>& cases);
void add_layer_cases(std::vector<Case>& cases);
void add_loss_cases(std::vector<Case>& cases);
void add_window_cases(std::vector<Case>& cases);
void add_sequence_cases(std::vector<Case>& cases);
void add_update_cases(std::vector<Case>& cases);

}  // namespace shardrun::test
