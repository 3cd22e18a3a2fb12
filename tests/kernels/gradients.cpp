// Compares every gradient with central differences in float64. With phi = sum of <cotangent, result>, the gradient that
// an op builds for an operand is d phi / d operand, element by element.

#include <algorithm>
#include <cmath>
#include <set>

#include "core/graph/builder.h"
#include "tests/kernels/compare.h"
#include "tests/support/catch.h"

using namespace shardrun;
using namespace shardrun::test;

namespace {

constexpr double step = 1e-5;

/// The results through which gradients flow; the others serve the op's own backward pass.
bool flows(const graph::Op& op, std::size_t output) { return output < op.differentiated; }

/// Whether an operand has no gradient, or only zero: integers, operands that become integers, and those listed here:
/// targets, conditions, and the row's maximum, which cancels in the loss as a whole (tested below).
bool has_no_gradient(const Prepared& prepared, std::size_t input) {
  static const std::set<std::pair<std::string, std::size_t>> undefined = {
      {"softmax_terms", 1}, {"token_loss", 0}, {"broadcast_scalar", 1}, {"where", 0}, {"broadcast", 1}};
  return undefined.count({prepared.op->name, input}) == 1 || !graph::is_real(prepared.inputs[input].type.dtype) ||
         !graph::is_real(prepared.outputs[0].type.dtype);
}

/// Integers that an op moves: no gradient flows to them.
bool is_moved_integer(const Prepared& prepared, std::size_t input) {
  return !graph::is_real(prepared.inputs[input].type.dtype) && !graph::is_real(prepared.outputs[0].type.dtype);
}

bool is_small(const Case& test) {
  std::int64_t elements = 0;
  for (const Operand& operand : test.operands) {
    elements += graph::element_count(operand.type);
  }
  return elements <= 400;
}

std::vector<Tensor> make_cotangents(const Prepared& prepared) {
  Random random(7);
  std::vector<Tensor> cotangents = prepared.outputs;
  for (Tensor& cotangent : cotangents) {
    random.fill_normal(cotangent, 0, 1);
  }
  return cotangents;
}

double phi(const Prepared& prepared, const std::vector<Tensor>& cotangents) {
  const std::vector<Tensor> results = run(device::Device::find("reference"), prepared);
  double sum = 0;
  for (std::size_t o = 0; o < results.size(); ++o) {
    for (std::size_t i = 0; flows(*prepared.op, o) && i < results[o].values.size(); ++i) {
      sum += results[o].values[i] * cotangents[o].values[i];
    }
  }
  return sum;
}

Tensor numeric_gradient(Prepared prepared, const std::vector<Tensor>& cotangents, std::size_t input) {
  Tensor gradient = prepared.inputs[input];
  for (std::size_t e = 0; e < gradient.values.size(); ++e) {
    double& element = prepared.inputs[input].values[e];
    const double centre = element;
    element = centre + step;
    const double above = phi(prepared, cotangents);
    element = centre - step;
    const double below = phi(prepared, cotangents);
    element = centre;
    gradient.values[e] = (above - below) / (2 * step);
  }
  return gradient;
}

/// Builds the op and its gradient with respect to one operand, and evaluates them. Empty values: no gradient.
Tensor built_gradient(const Prepared& prepared, const std::vector<Tensor>& cotangents, std::size_t input) {
  graph::Graph graph;
  graph::FunctionBuilder builder(graph, "gradient", graph::Role::on_demand, 1);
  std::map<graph::ValueId, Tensor> given;
  const auto give = [&](const std::string& name, const Tensor& tensor) {
    const graph::ValueId id = builder.input(name, tensor.type);
    given[id] = tensor;
    return id;
  };
  std::vector<graph::ValueId> inputs;
  for (std::size_t i = 0; i < prepared.inputs.size(); ++i) {
    inputs.push_back(give("operand" + std::to_string(i), prepared.inputs[i]));
  }
  const std::vector<graph::ValueId> outputs = builder.call_all(prepared.op->name, inputs, prepared.attributes);
  std::vector<graph::ValueId> output_gradients;
  for (std::size_t o = 0; o < outputs.size(); ++o) {
    const bool flow = flows(*prepared.op, o);
    output_gradients.push_back(flow ? give("cotangent" + std::to_string(o), cotangents[o]) : graph::ValueId{});
  }
  const graph::ValueId gradient =
      prepared.op->gradient(builder, {prepared.attributes, inputs, outputs, output_gradients, input});
  if (!gradient.exists()) {
    return {};
  }
  const device::Device& reference = device::Device::find("reference");
  return evaluate(builder.function(), reference, given, scalars_of_tests())[gradient];
}

/// Compares relative to the largest element, but at least to 1e-3, for gradients that are zero everywhere.
void check_close(const Tensor& found, const Tensor& expected) {
  double largest = 1e-3;
  for (const double value : expected.values) {
    largest = std::max(largest, std::abs(value));
  }
  REQUIRE(found.values.size() == expected.values.size());
  double worst = 0;
  for (std::size_t i = 0; i < expected.values.size(); ++i) {
    const double error = std::abs(found.values[i] - expected.values[i]) / largest;
    worst = error <= worst ? worst : error;
  }
  CHECK(worst <= 1e-6);
}

void check_gradients(const Prepared& prepared) {
  const std::vector<Tensor> cotangents = make_cotangents(prepared);
  for (std::size_t i = 0; i < prepared.inputs.size(); ++i) {
    INFO("operand " << i);
    if (is_moved_integer(prepared, i)) {
      continue;
    }
    if (prepared.op->name == "scaled_dot_product_attention" && i == 3) {
      CHECK_THROWS_WITH(built_gradient(prepared, cotangents, i), Catch::Contains("the mask has no gradient"));
      continue;
    }
    const Tensor gradient = built_gradient(prepared, cotangents, i);
    if (has_no_gradient(prepared, i)) {
      CHECK(gradient.values.empty());
      continue;
    }
    CHECK(gradient.type.shape == prepared.inputs[i].type.shape);
    check_close(gradient, numeric_gradient(prepared, cotangents, i));
  }
}

}  // namespace

TEST_CASE("every op's gradient equals central differences", "[kernels]") {
  for (const graph::Op* op : graph::all_ops()) {
    if (op->gradient == nullptr) {
      continue;
    }
    DYNAMIC_SECTION(op->name) {
      bool checked = false;
      for (const Case& test : cases_of(op->name)) {
        if (is_small(test)) {
          INFO(to_string(test));
          check_gradients(prepare(test));
          checked = true;
        }
      }
      CHECK(checked);
    }
  }
}

namespace {

/// Mean over rows of -log softmax(h w' w + h)[target], h = x w. The parameter w is used three times and h twice: each
/// of w's contributions is a write of its own, those of h are added up.
struct CrossEntropy {
  graph::Graph graph;
  std::map<graph::ValueId, Tensor> given;
  graph::ValueId weight = {};
  graph::ValueId loss = {};
  graph::Function function;

  CrossEntropy() {
    Random random(3);
    Tensor w = zeros(type_of({5, 7}));
    Tensor x = zeros(type_of({3, 5}));
    Tensor targets = zeros(type_of({3}, graph::DType::i32));
    random.fill_normal(w, 0, 1);
    random.fill_normal(x, 0, 1);
    random.fill_integers(targets, 7);
    graph.states.push_back({.name = "w", .type = w.type});
    graph::FunctionBuilder builder(graph, "micro", graph::Role::repeated, 3);
    const graph::ValueId x_id = builder.input("x", x.type);
    const graph::ValueId targets_id = builder.input("targets", targets.type);
    weight = builder.state("w");
    given = {{x_id, x}, {targets_id, targets}, {weight, w}};

    const graph::ValueId hidden = builder.call("matmul", {x_id, weight}, {{"contract", 1}, {"transpose", 0}});
    const graph::ValueId back = builder.call("matmul", {hidden, weight}, {{"contract", 1}, {"transpose", 1}});
    const graph::ValueId again = builder.call("matmul", {back, weight}, {{"contract", 1}, {"transpose", 0}});
    const graph::ValueId logits = builder.call("add", {again, hidden});
    const graph::ValueId max = builder.call("row_max", {logits});
    const std::vector<graph::ValueId> terms = builder.call_all("softmax_terms", {logits, max, targets_id});
    const graph::ValueId losses = builder.call("token_loss", {max, terms[0], terms[1]});
    loss = builder.call("sum_all", {losses}, {{"scale", 1.0 / 3}});
    graph::differentiate(builder, loss);
    function = builder.function();
  }

  [[nodiscard]] IdVector<graph::ValueId, Tensor> values() const {
    return evaluate(function, device::Device::find("reference"), given, scalars_of_tests());
  }
};

}  // namespace

TEST_CASE("a loss made of a row's maximum, terms and target has the gradient of cross-entropy", "[kernels]") {
  CrossEntropy model;
  const IdVector<graph::ValueId, Tensor> values = model.values();
  Tensor gradient = zeros(type_of({5, 7}));
  REQUIRE(model.function.writes.size() == 3);
  for (const graph::StateWrite& write : model.function.writes) {
    for (std::size_t i = 0; i < gradient.values.size(); ++i) {
      gradient.values[i] += values[write.value].values[i];
    }
  }

  Tensor numeric = gradient;
  for (std::size_t e = 0; e < numeric.values.size(); ++e) {
    double& element = model.given[model.weight].values[e];
    const double centre = element;
    element = centre + step;
    const double above = model.values()[model.loss].values[0];
    element = centre - step;
    const double below = model.values()[model.loss].values[0];
    element = centre;
    numeric.values[e] = (above - below) / (2 * step);
  }

  check_close(gradient, numeric);
}
