#include "tests/kernels/case.h"

#include <algorithm>
#include <iterator>

#include "core/device/elements.h"

namespace shardrun::test {

std::string to_string(const Case& test) {
  std::string text = test.op + " " + graph::to_string(test.attributes);
  for (const Operand& operand : test.operands) {
    text += " " + graph::to_string(operand.type);
  }
  return text;
}

std::vector<Case> cases_of(std::string_view op) {
  static const std::vector<Case> all = [] {
    std::vector<Case> cases;
    add_elementwise_cases(cases);
    add_dimension_cases(cases);
    add_window_cases(cases);
    add_formula_cases(cases);
    add_layer_cases(cases);
    add_loss_cases(cases);
    add_sequence_cases(cases);
    add_update_cases(cases);
    return cases;
  }();
  std::vector<Case> cases;
  std::copy_if(all.begin(), all.end(), std::back_inserter(cases), [&](const Case& test) { return test.op == op; });
  return cases;
}

std::int64_t largest_operand(const Case& test) {
  std::int64_t largest = 0;
  for (const Operand& operand : test.operands) {
    largest = std::max(largest, graph::element_count(operand.type));
  }
  return largest;
}

Prepared prepare(const Case& test, std::uint64_t seed) {
  Prepared prepared{
      .op = &graph::find_op(test.op), .attributes = test.attributes, .rule = {}, .inputs = {}, .outputs = {}};
  Random random(seed);
  std::vector<graph::TensorType> types;
  for (const Operand& operand : test.operands) {
    prepared.inputs.push_back(zeros(operand.type));
    operand.fill(random, prepared.inputs.back());
    device::round_elements(operand.type.dtype, prepared.inputs.back().values);
    types.push_back(operand.type);
  }
  if (test.derive != nullptr) {
    test.derive(prepared.inputs);
    for (Tensor& tensor : prepared.inputs) {
      round_to_float(tensor);
      device::round_elements(tensor.type.dtype, tensor.values);
    }
  }
  prepared.rule = prepared.op->rule(prepared.attributes, types);
  for (graph::TensorType& type : graph::infer_types(prepared.rule, types, to_string(test))) {
    prepared.outputs.push_back(zeros(std::move(type)));
  }
  return prepared;
}

device::Scalars scalars_of_tests() {
  return {.seed = 1234567890123,
          .step = 3,
          .learning_rate = 0.01,
          .first_sample = 5,
          .position = 1,
          .first_microbatch = false};
}

Operand normal(Shape shape) {
  return {type_of(std::move(shape)), [](Random& random, Tensor& tensor) { random.fill_normal(tensor, 0, 1); }};
}

Operand off_centre(Shape shape) {
  return {type_of(std::move(shape)), [](Random& random, Tensor& tensor) { random.fill_normal(tensor, 10, 1); }};
}

Operand positive(Shape shape) {
  return {type_of(std::move(shape)), [](Random& random, Tensor& tensor) { random.fill_uniform(tensor, 0.5, 20); }};
}

Operand few_values(Shape shape) {
  return {type_of(std::move(shape)), [](Random& random, Tensor& tensor) { random.fill_integers(tensor, 2); }};
}

Operand small_positive(Shape shape) {
  return {type_of(std::move(shape)), [](Random& random, Tensor& tensor) { random.fill_uniform(tensor, 0, 0.1); }};
}

}  // namespace shardrun::test
