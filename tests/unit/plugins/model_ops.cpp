// Ops that models bring: how they are read and called. What they compute is checked by tests/conformance/models.cpp.

#include <string>

#include "core/conformance/evaluate.h"
#include "core/device/device.h"
#include "core/graph/builder.h"
#include "plugins/loader/model.h"
#include "tests/support/catch.h"
#include "tests/unit/plugins/fixtures.h"

using namespace shardrun;
using namespace shardrun::test;
using namespace shardrun::plugins;
using Catch::Contains;

namespace {

Model open_own_op(const std::string& name) { return Model::open(fixtures, "own_op_" + name); }

/// The part of the error after the op's label.
std::string own_op_error(const std::string& name, const std::string& op = "op 'scaled'") {
  const std::string error = error_of([&] { static_cast<void>(open_own_op(name)); });
  const std::string label =
      "2: " + op + " of model 'own_op_" + name + "' (" SHARDRUN_FIXTURES "/shardrun_model_own_op_" + name + ".so): ";
  return error.starts_with(label) ? error.substr(label.size()) : error;
}

graph::Graph iterated(const Model& model) {
  graph::Graph graph;
  model.declare(graph, {});
  graph::FunctionBuilder builder(graph, "iterate", graph::Role::once, 0);
  static_cast<void>(model.write_function(builder, {}, "iterate", 0, false));
  builder.finish();
  return graph;
}

std::vector<conformance::Tensor> scaled(const char* device, double factor) {
  conformance::Tensor x = conformance::zeros(conformance::type_of({2, 2}));
  x.values = {1, 2, 3, -4};
  const graph::Attributes attributes = {{"factor", factor}};
  return conformance::execute(
      device::Device::find(device),
      {.op = "own_op_sound.scaled", .attributes = attributes, .inputs = {x}, .outputs = {conformance::zeros(x.type)}});
}

}  // namespace

TEST_CASE("a model's own op is read with rule, operands and attributes", "[plugins]") {
  const Model model = open_own_op("sound");
  REQUIRE(model.ops().size() == 1);
  const ModelOp& op = *model.ops().front();
  CHECK(op.name == "scaled");
  CHECK(op.in_graph == "own_op_sound.scaled");
  CHECK(op.help == "factor * x");
  CHECK(op.rule == "i* -> i*");
  CHECK(op.min_operands == 1);
  REQUIRE(op.operands.size() == 1);
  CHECK_FALSE(op.operands[0].is_integer);
  CHECK(op.operands[0].low == 0.5);
  CHECK(op.operands[0].high == 2);
  REQUIRE(op.attributes.size() == 1);
  CHECK(describe(op.attributes[0]) == "factor, a real number: what is left");
  CHECK(op.example.real("factor") == 0.25);

  const graph::Op& registered = graph::find_op("own_op_sound.scaled");
  CHECK(registered.only_float32);
  CHECK(registered.of_model == "own_op_sound");
  CHECK(open_own_op("sound").ops().size() == 1);  // opened again, nothing is registered twice
}

TEST_CASE("a graph prints the rule of a model's own op, so that ranks compare it", "[plugins]") {
  const graph::Graph graph = iterated(open_own_op("sound"));
  REQUIRE(graph.functions.front().nodes.size() == 1);
  CHECK(graph.functions.front().nodes.front().name == "next");
  CHECK_THAT(to_string(graph), Contains("next f32[x 6] = own_op_sound.scaled(u){factor=0.5}  [forward; i0 -> i0]"));
}

TEST_CASE("both devices run a model's own kernels", "[plugins]") {
  static_cast<void>(open_own_op("sound"));
  CHECK(scaled("cpu", 0.5).front().values == std::vector<double>{0.5, 1, 1.5, -2});
  CHECK(scaled("reference", 0.1).front().values == std::vector<double>{0.1, 0.2, 0.1 * 3, -0.4});
  CHECK_THAT(error_of([] { static_cast<void>(scaled("cpu", 0)); }),
             Contains("op 'scaled' of model 'own_op_sound'") && Contains("nothing would be left"));
  const graph::Attributes attributes = {{"factor", 1.0}};
  const std::vector<graph::TensorType> rows = {conformance::type_of({5, 2})};
  const graph::OpShape shape = {attributes, rows, rows};
  const device::Device& cpu = device::Device::find("cpu");
  CHECK(cpu.scratch_bytes(cpu.kernel("own_op_sound.scaled"), shape, 1) == 40);
}

TEST_CASE("a model cannot call another one's op", "[plugins]") {
  static_cast<void>(open_own_op("sound"));
  CHECK(graph::find_op_of("fading", "scaled") == nullptr);
  CHECK(graph::find_op_of("own_op_sound", "scaled") != nullptr);
  for (const graph::Op* op : graph::all_ops()) {
    CHECK(op->of_model.empty());
  }
}

TEST_CASE("a wrongly declared op is refused with the plugin and the op", "[plugins]") {
  CHECK_THAT(own_op_error("bad_rule"), Contains("the rule 'i - i' has no '->'; expected such as"));
  CHECK(own_op_error("no_kernel") == "it lacks kernel");
  CHECK(own_op_error("of_core", "op 'relu'") == "shardrun has an op of that name: give it another");
  CHECK(own_op_error("misnamed", "op 'My op'") == "the name is 'My op', expected [a-z][a-z0-9_]*");
  CHECK(own_op_error("twice") == "an earlier one has that name");
  CHECK_THAT(own_op_error("operands"),
             Contains("it declares 2 operands, and its rule 'i* -> i*' has 1; expected as many"));
  CHECK_THAT(own_op_error("no_example"), Contains("its example: ") && Contains("factor"));
}

TEST_CASE("windows of all operands must agree on the size, and an op counts what its windows read", "[plugins]") {
  static_cast<void>(open_own_op("windows"));
  graph::Graph graph;
  graph::FunctionBuilder builder(graph, "f", graph::Role::on_demand, 1);
  const auto call = [&](std::int64_t pairs, std::int64_t singles) {
    const graph::ValueId x = builder.input("x" + std::to_string(pairs), conformance::type_of({pairs}));
    const graph::ValueId y = builder.input("y" + std::to_string(pairs), conformance::type_of({singles}));
    return builder.call("own_op_windows.scaled", {x, y}, {{"factor", 1.0}});
  };
  CHECK(builder.type(call(5, 3)).shape == std::vector<std::int64_t>{3});
  CHECK_THAT(error_of([&] { static_cast<void>(call(6, 4)); }),
             Contains("op 'scaled' of model 'own_op_windows'") &&
                 Contains("the windows of the rule '2i[0..1], i[0..0] -> i' give the factor 'i' 3 and 4 indices"));
  const graph::Op& op = graph::find_op("own_op_windows.scaled");
  CHECK(to_string(op.example.operands[0]) == "f32[i 3]");
  // Of a shard of 2 results: it reads one element more than they have, and the windows are no matter of sizes.
  const std::vector<graph::TensorType> operands = {conformance::type_of({7}), conformance::type_of({2})};
  const std::vector<graph::TensorType> results = {conformance::type_of({2})};
  CHECK(flops(op, {op.example.attributes, operands, results}) == 2 * 2 * 2);
}

TEST_CASE("an op called with operands that do not fit its rule reports it", "[plugins]") {
  static_cast<void>(open_own_op("sound"));
  graph::Graph graph;
  graph::FunctionBuilder builder(graph, "f", graph::Role::on_demand, 1);
  const graph::ValueId x = builder.input("x", conformance::type_of({3}));
  const graph::ValueId i = builder.input("i", conformance::type_of({3}, graph::DType::i32));
  const auto refused = [&](std::vector<graph::ValueId> operands) {
    return error_of([&] {
      static_cast<void>(builder.call("own_op_sound.scaled", std::move(operands), {{"factor", 1.0}}));
    });
  };
  CHECK_THAT(refused({x, x}), Contains("op 'scaled' of model 'own_op_sound'") && Contains("takes 1 operands, found 2"));
  CHECK_THAT(refused({i}), Contains("operand 0 is i32[a0 3], expected real numbers"));
}
