// The element types of mixed precision, value by value.

#include "core/graph/rewrites.h"

#include <map>
#include <set>

#include "core/device/elements.h"
#include "core/runtime/executor.h"
#include "tests/support/catch.h"
#include "tests/support/model_cases.h"

using namespace shardrun;
using namespace shardrun::graph;
using namespace shardrun::test;

namespace {

constexpr DType both[] = {DType::f32, DType::bf16};

/// A gpt with everything that it can have, uneven microbatches, evaluation and prediction. `gradients`:
/// nothing: float32.
ModelCase gpt(std::optional<DType> gradients, Remat remat = Remat::none) {
  return training_case("gpt", "gpt",
                       {{"layers", "2"},
                        {"heads", "2"},
                        {"width", "4"},
                        {"context", "3"},
                        {"bias", "true"},
                        {"tied", "false"},
                        {"dropout", "0.2"}},
                       {.vocab = 5},
                       {.batch = 3,
                        .microbatches = 2,
                        .eval_rows = 2,
                        .eval_samples = 3,
                        .predict = true,
                        .remat = remat,
                        .mixed = gradients,
                        .optimizer = {.clip = 0.5}});
}

ModelCase mlp(std::optional<DType> gradients, const char* loss) {
  const bool labels = std::string(loss) == "cross_entropy";
  return training_case(
      "mlp", "mlp", {{"hidden", "9"}, {"loss", loss}},
      labels ? workload::DataShape{.vocab = 4, .features = 5} : workload::DataShape{.features = 5, .outputs = 3},
      {.batch = 6,
       .microbatches = 4,
       .eval_rows = 4,
       .eval_samples = 4,
       .mixed = gradients,
       .optimizer = {.kind = workload::OptimizerSettings::Kind::sgd, .momentum = 0.9}});
}

std::vector<ModelCase> cases(std::optional<DType> gradients) {
  return {gpt(gradients), mlp(gradients, "squared_error"), mlp(gradients, "cross_entropy")};
}

using Names = std::set<std::string>;

/// The results of nodes with this element type, as `op result`. Gradients of parameters are left out: their type
/// is given.
Names results_in(const Function& function, const Graph& graph, DType dtype) {
  std::set<ValueId> gradients;
  for (const StateWrite& write : function.writes) {
    if (graph.states[write.state].kind == StateKind::gradient) {
      gradients.insert(write.value);
    }
  }
  Names found;
  for (const Node& node : function.nodes) {
    for (std::size_t o = 0; o < node.outputs.size(); ++o) {
      if (function.values[node.outputs[o]].type.dtype == dtype && !gradients.contains(node.outputs[o])) {
        found.insert(std::string(node.op->name) + " " + std::to_string(o));
      }
    }
  }
  return found;
}

}  // namespace

TEST_CASE("in mixed precision parameters are bfloat16, and the states of their update are float32", "[graph]") {
  for (const DType gradients : both) {
    for (const ModelCase& model : cases(gradients)) {
      const Graph& graph = model.graph;
      for (const StateId id : graph.states.ids()) {
        const State& state = graph.states[id];
        INFO(model.name << ": " << state.name);
        const bool is_parameter = state.kind == StateKind::parameter;
        CHECK(state.type.dtype == (is_parameter                        ? DType::bf16
                                   : state.kind == StateKind::gradient ? gradients
                                                                       : DType::f32));
        CHECK(state.master.exists() == is_parameter);
        if (is_parameter) {
          const State& master = graph.states[state.master];
          CHECK(graph.master_of(id) == state.master);
          CHECK(master.name == "master/" + state.name);
          CHECK(master.kind == StateKind::optimizer);
          CHECK(master.of_parameter == id);
          CHECK(master.type.shape == state.type.shape);
        }
      }
    }
  }
}

TEST_CASE("in mixed precision statistics, sums and losses are float32, and other results bfloat16", "[graph]") {
  for (const DType gradients : both) {
    const ModelCase transformer = gpt(gradients);
    for (const std::int64_t rows : {1, 2}) {
      const Function& micro = *transformer.graph.find("micro", rows);
      CHECK(results_in(micro, transformer.graph, DType::f32) ==
            Names{"attention 1", "broadcast_scalar 0", "constant 0", "layer_norm 1", "layer_norm 2", "negate 0",
                  "row_max 0", "softmax_terms 0", "softmax_terms 1", "sum_all 0", "token_loss 0",
                  "token_loss_gradient_sum 0"});
    }
    const ModelCase numbers = mlp(gradients, "squared_error");
    CHECK(results_in(*numbers.graph.find("micro", 2), numbers.graph, DType::f32) ==
          Names{"broadcast_scalar 0", "constant 0", "squared_error 0", "sum_all 0"});
    const ModelCase labels = mlp(gradients, "cross_entropy");
    CHECK(results_in(*labels.graph.find("micro", 2), labels.graph, DType::f32) ==
          Names{"broadcast_scalar 0", "constant 0", "negate 0", "row_max 0", "softmax_terms 0", "softmax_terms 1",
                "sum_all 0", "token_loss 0", "token_loss_gradient_sum 0"});
    CHECK(results_in(*labels.graph.find("update", 0), labels.graph, DType::bf16) == Names{"cast 0"});
  }
}

TEST_CASE("in mixed precision micro reads parameters, and update reads their masters", "[graph]") {
  for (const ModelCase& model : cases(DType::bf16)) {
    for (const Function& function : model.graph.functions) {
      const bool updates = function.role == Role::once;
      for (const Value& value : function.values) {
        if (value.state.exists()) {
          const State& state = model.graph.states[value.state];
          INFO(function.name << ": " << value.name);
          CHECK(value.type.dtype == state.type.dtype);
          CHECK(value.name == state.name);
          CHECK_FALSE((updates && state.kind == StateKind::parameter));
          CHECK_FALSE((!updates && state.kind == StateKind::optimizer));
        }
      }
      for (const StateWrite& write : function.writes) {
        const State& state = model.graph.states[write.state];
        const Value& value = function.values[write.value];
        INFO(function.name << ": " << state.name);
        CHECK(value.type.dtype == state.type.dtype);
        if (state.kind == StateKind::parameter) {
          const Node& cast = function.nodes[value.producer];
          CHECK(cast.op == &find_op("cast"));
          CHECK(std::ranges::any_of(function.writes, [&](const StateWrite& other) {
            return other.state == state.master && other.value == cast.inputs[0];
          }));
        }
      }
    }
  }
}

TEST_CASE("in mixed precision inputs are cast if they decide the type, and outputs are float32", "[graph]") {
  const ModelCase numbers = mlp(DType::bf16, "squared_error");
  for (const Function& function : numbers.graph.functions) {
    for (const Port& port : function.inputs) {
      CHECK(function.values[port.value].type.dtype == DType::f32);
      const bool is_cast = std::ranges::any_of(function.nodes, [&](const Node& node) {
        return node.op == &find_op("cast") && node.inputs[0] == port.value;
      });
      INFO(function.name << ": " << port.name);
      CHECK(is_cast == (port.name == "inputs"));  // the type of the loss follows the predictions, not the targets
    }
  }
  const ModelCase transformer = gpt(DType::bf16);
  for (const Function& function : transformer.graph.functions) {
    for (const Port& port : function.inputs) {
      CHECK(function.values[port.value].type.dtype == DType::i32);
    }
    for (const Port& port : function.outputs) {
      INFO(function.name << ": " << port.name);
      CHECK(function.values[port.value].type.dtype == DType::f32);
    }
  }
}

TEST_CASE("values computed again have the types of the originals", "[graph]") {
  const std::string prefix = "recompute/";
  for (const Remat remat : {Remat::layer, Remat::selective}) {
    for (const DType gradients : both) {
      const ModelCase model = gpt(gradients, remat);
      const Function& function = *model.graph.find("micro", 2);
      std::map<std::string, DType> types;
      int clones = 0;
      for (const Value& value : function.values) {
        types.emplace(value.name, value.type.dtype);
      }
      for (const Value& value : function.values) {
        if (value.name.starts_with(prefix)) {
          INFO(value.name);
          CHECK(value.type.dtype == types.at(value.name.substr(prefix.size())));
          ++clones;
        }
      }
      CHECK(clones > 0);
      CHECK(results_in(function, model.graph, DType::f32) ==
            results_in(*gpt(gradients).graph.find("micro", 2), model.graph, DType::f32));
    }
  }
}

TEST_CASE("without mixed precision every real number is float32, and nothing is cast", "[graph]") {
  for (const ModelCase& model : cases(std::nullopt)) {
    for (const State& state : model.graph.states) {
      CHECK(state.type.dtype == DType::f32);
      CHECK_FALSE(state.master.exists());
    }
    for (const Function& function : model.graph.functions) {
      for (const Value& value : function.values) {
        INFO(function.name << ": " << value.name);
        CHECK((value.type.dtype == DType::f32 || !is_real(value.type.dtype)));
      }
      for (const Node& node : function.nodes) {
        CHECK(node.op != &find_op("cast"));
      }
    }
  }
}

TEST_CASE("in mixed precision masters begin as float32's parameters, and parameters as their rounded values",
          "[graph]") {
  const ModelCase narrow = gpt(DType::bf16);
  const ModelCase wide = gpt(std::nullopt);
  device::Threads threads(1);
  const auto values = [&](const State& state) {
    const auto elements = static_cast<std::size_t>(element_count(state.type));
    std::vector<std::byte> bytes(elements * element_bytes(state.type.dtype));
    device::TensorView view{.data = bytes.data(), .dtype = state.type.dtype, .rounded = state.type.dtype};
    view.rank = static_cast<std::uint32_t>(state.type.shape.size());
    std::ranges::copy(state.type.shape, std::begin(view.shape));
    const mesh::Box whole{std::vector<std::int64_t>(state.type.shape.size(), 0), state.type.shape};
    runtime::initialize(view, whole, state, 17, threads);
    std::vector<double> made(elements);
    device::read_elements(view, 0, made);
    return made;
  };
  for (const StateId id : narrow.graph.states.ids()) {
    const State& state = narrow.graph.states[id];
    if (state.kind == StateKind::parameter) {
      std::vector<double> expected = values(wide.graph.states[wide.graph.find_state(state.name)]);
      INFO(state.name);
      CHECK(values(narrow.graph.states[state.master]) == expected);
      device::round_elements(DType::bf16, expected);
      CHECK(values(state) == expected);
    }
  }
}

namespace {

/// An op that takes and makes only float32, like the ops of models. Its second result is always float32.
const Op& float32_op() {
  static const bool added = [] {
    add_op({.name = "test.float32",
            .rule =
                [](const Attributes&, const std::vector<TensorType>&) {
                  ShardingRule rule = parse_rule("b e, e -> b e, b e");
                  rule.dtypes = {std::nullopt, DType::f32};
                  return rule;
                },
            .only_float32 = true,
            .of_model = "test"});
    return true;
  }();
  static_cast<void>(added);
  return *find_op_of("test", "float32");
}

}  // namespace

TEST_CASE("in mixed precision an op of float32 alone gets float32, and ops after it bf16", "[graph]") {
  Graph graph;
  const TensorType row = {.shape = {3, 4}, .axes = {"batch", "embed"}};
  graph.states.push_back({.name = "w", .type = {.shape = {4}, .axes = {"embed"}}});
  FunctionBuilder builder(graph, "f", Role::on_demand, 3);
  const ValueId x = builder.input("x", row);
  const ValueId h = builder.call("relu", {x}, {}, "h");
  const std::vector<ValueId> results = builder.call_all(float32_op().name, {h, builder.state("w")}, {}, "own");
  builder.output("y", builder.call("relu", {results[0]}, {}, "y"));
  builder.output("z", builder.call("relu", {results[1]}, {}, "z"));
  builder.finish();

  mix_precision(graph, DType::f32);

  std::map<std::string, std::string> types;
  for (const Value& value : graph.functions.front().values) {
    types[value.name] = to_string(value.type.dtype);
  }
  CHECK(types["h"] == "bf16");
  CHECK(types["cast/own/h"] == "f32");
  CHECK(types["cast/own/w"] == "f32");
  CHECK(types["own"] == "f32");
  CHECK(types["own.1"] == "f32");
  CHECK(types["cast/own"] == "bf16");
  CHECK(types["y"] == "bf16");
  CHECK(types["z"] == "f32");
  CHECK(types["cast/y"] == "f32");
}
