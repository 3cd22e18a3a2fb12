#include "core/graph/builder.h"

#include <fmt/ranges.h>

#include <map>
#include <set>

#include "tests/support/catch.h"
#include "tests/support/errors.h"
#include "tests/support/model_cases.h"

using namespace shardrun;
using namespace shardrun::graph;
using namespace shardrun::test;
using Catch::Contains;

namespace {

const Attributes product{{"contract", std::int64_t{1}}, {"transpose", std::int64_t{0}}};

Graph gpt(std::initializer_list<job::WrittenSetting> options) {
  return training_case("", "gpt", options, {.vocab = 65}, {.batch = 5, .predict = true}).graph;
}

/// The type of the function's first value of that name, as text.
std::string type_of_value(const Function& function, std::string_view name) {
  for (const Value& value : function.values) {
    if (value.name == name) {
      return to_string(value.type);
    }
  }
  return "none";
}

}  // namespace

TEST_CASE("two states with one name are refused, and both are described", "[graph]") {
  Graph graph;
  graph.model = "m";
  const TensorType type{DType::f32, {4}, {"x"}};
  const StateId w = graph.add_state({.name = "w", .type = type, .kind = StateKind::parameter});
  static_cast<void>(graph.add_state({.name = "first_moment/w", .type = type, .kind = StateKind::parameter}));
  CHECK(error_of([&] {
          graph.add_state({.name = "first_moment/w", .type = type, .kind = StateKind::optimizer, .of_parameter = w});
        }) ==
        "2: model m: the parameter 'first_moment/w' and the optimizer state of parameter 'w' have one name, "
        "'first_moment/w': the model has to call its own otherwise");
  CHECK(graph.states.size() == 2);
}

TEST_CASE("axis names flow through a transformer", "[graph]") {
  const Graph graph = gpt({{"layers", "2"}, {"heads", "4"}, {"width", "8"}, {"context", "6"}, {"bias", "true"}});
  const Function& micro = *graph.find("micro", 5);
  CHECK(type_of_value(micro, "inputs") == "i32[batch 5, seq 6]");
  CHECK(type_of_value(micro, "layer.1/residual") == "f32[batch 5, seq 6, embed 8]");
  CHECK(type_of_value(micro, "layer.0/attention_residual") == "f32[batch 5, seq 6, embed 8]");
  CHECK(type_of_value(micro, "layer.0/attention/qkv") == "f32[batch 5, seq 6, qkv 3, heads 4, head_dim 2]");
  CHECK(type_of_value(micro, "layer.0/attention") == "f32[batch 5, seq 6, heads 4, head_dim 2]");
  CHECK(type_of_value(micro, "layer.0/mlp/up") == "f32[batch 5, seq 6, mlp 32]");
  CHECK(type_of_value(micro, "logits") == "f32[batch 5, seq 6, vocab 65]");
  CHECK(type_of_value(micro, "losses") == "f32[batch 5, seq 6]");
  CHECK(type_of_value(micro, "loss") == "f32[]");
  CHECK(type_of_value(*graph.find("predict", 1), "logits") == "f32[batch 1, vocab 65]");
}

TEST_CASE("a gradient has the shape and axis names of its parameter", "[graph]") {
  for (const ModelCase& model : model_cases()) {
    for (const Function& function : model.graph.functions) {
      for (const StateWrite& write : function.writes) {
        const State& state = model.graph.states[write.state];
        INFO(model.name << ", " << state.name);
        CHECK(to_string(function.values[write.value].type) == to_string(state.type));
      }
    }
  }
}

TEST_CASE("layers and cut points are marked", "[graph]") {
  const Graph graph = gpt({{"layers", "2"}, {"heads", "4"}, {"width", "8"}, {"context", "6"}});
  CHECK(graph.layers == 2);
  std::string points;
  for (const CutPoint& point : graph.cut_points) {
    points += point.name + " " + std::to_string(point.layer) + "; ";
  }
  CHECK(points ==
        "residual -1; layer.0/attention_residual 0; layer.0/residual 0; layer.1/attention_residual 1; layer.1/residual "
        "1; ");
  for (const Node& node : graph.find("micro", 5)->nodes) {
    const std::size_t at = node.name.find("layer.");
    const bool named = at != std::string::npos && node.phase == Phase::forward;
    INFO(node.name);
    CHECK((!named || std::to_string(node.layer) == node.name.substr(at + 6, 1)));
  }
}

TEST_CASE("names are prefixed by the open scopes", "[graph]") {
  Graph graph;
  FunctionBuilder builder(graph, "f", Role::on_demand, 1);
  const ValueId x = builder.input("x", type_of({2}));
  ValueId y = {};
  {
    const Scope outer(builder, "layer.3");
    const Scope inner(builder, "mlp");
    y = builder.call("negate", {x}, {}, "up");
  }
  const ValueId z = builder.call("negate", {y});
  CHECK(builder.function().values[y].name == "layer.3/mlp/up");
  CHECK(builder.function().values[z].name == "negate");
}

TEST_CASE("an op without a name is named after its parameter, and names are unique", "[graph]") {
  Graph graph;
  graph.states.push_back({.name = "layer.0/mlp/up/weights", .type = type_of({2, 2})});
  graph.states.push_back({.name = "layer.0/mlp/up/bias", .type = type_of({2})});
  graph.states.push_back({.name = "w", .type = type_of({2, 2})});
  FunctionBuilder builder(graph, "f", Role::on_demand, 1);
  ValueId x = builder.input("x", type_of({3, 2}));
  x = builder.call("matmul", {x, builder.state("layer.0/mlp/up/weights")}, product);
  x = builder.call("add", {x, builder.state("layer.0/mlp/up/bias")});
  x = builder.call("matmul", {x, builder.state("layer.0/mlp/up/weights")}, product);
  x = builder.call("matmul", {x, builder.state("w")}, product);
  x = builder.call("negate", {x});
  x = builder.call("negate", {x});
  x = builder.call("negate", {x}, {}, "y");
  x = builder.call("negate", {x}, {}, "y");
  builder.cut_point("residual", x);

  std::vector<std::string> names;
  for (const Node& node : builder.function().nodes) {
    names.push_back(node.name);
    CHECK(builder.function().values[node.outputs[0]].name == node.name);
  }
  CHECK(names == std::vector<std::string>{"layer.0/mlp/up", "layer.0/mlp/up/add", "layer.0/mlp/up/matmul", "w/matmul",
                                          "negate", "negate_2", "y", "residual"});
}

TEST_CASE("each node has a unique name, which its result has too", "[graph]") {
  for (const ModelCase& model : model_cases()) {
    for (const Function& function : model.graph.functions) {
      std::set<std::string> names;
      for (const Node& node : function.nodes) {
        INFO(model.name << ", " << function.name << ", " << node.name);
        CHECK(names.insert(node.name).second);
        CHECK(function.values[node.outputs[0]].name == node.name);
      }
    }
  }
}

TEST_CASE("nodes of a transformer and of its gradient are named after their parameters", "[graph]") {
  const Graph graph = gpt({{"layers", "2"}, {"heads", "4"}, {"width", "8"}, {"context", "6"}, {"dropout", "0.1"}});
  std::map<std::string, std::string> ops;
  for (const Node& node : graph.find("micro", 5)->nodes) {
    ops[node.name] = node.op->name;
  }
  for (const auto& [name, op] : std::map<std::string, std::string>{
           {"embedding", "embedding"},
           {"layer.0/attention_norm", "layer_norm"},
           {"layer.0/attention/qkv", "matmul"},
           {"layer.0/attention/output", "matmul"},
           {"layer.0/attention/output/dropout", "dropout"},
           {"layer.0/attention_residual", "add"},
           {"layer.1/mlp_norm", "layer_norm"},
           {"layer.1/mlp/up", "matmul"},
           {"layer.1/mlp/gelu", "gelu"},
           {"layer.1/residual", "add"},
           {"final_norm", "layer_norm"},
           {"gradient/layer.1/mlp_norm", "layer_norm_gradient_input"},
           {"gradient/layer.1/mlp_norm/gain", "layer_norm_gradient_gain"},
           {"gradient/layer.0/attention/qkv/weights", "matmul_gradient_weights"},
           {"gradient/layer.0/attention/qkv", "matmul"},
           {"gradient/layer.0/attention", "attention_gradient"},
       }) {
    INFO(name);
    CHECK(ops[name] == op);
  }
}

TEST_CASE("a state is read once, even if it is asked for often", "[graph]") {
  Graph graph;
  graph.states.push_back({.name = "w", .type = type_of({2})});
  FunctionBuilder builder(graph, "f", Role::on_demand, 1);
  CHECK(builder.state("w") == builder.state(StateId(0)));
  CHECK(builder.function().values.size() == 1);
}

TEST_CASE("a wrong use of a function is refused with the function's name", "[graph]") {
  Graph graph;
  graph.states.push_back({.name = "w", .type = type_of({3, 4})});
  FunctionBuilder builder(graph, "f", Role::on_demand, 1);
  const ValueId x = builder.input("x", type_of({2, 5}));
  CHECK(error_of([&] { static_cast<void>(builder.state("v")); }) == "1: function f: no state is called 'v'");
  CHECK(error_of([&] {
          static_cast<void>(builder.call("matmul", {x, builder.state("w")}, product, "y"));
        }) ==
        "1: function f, node y (matmul): factor 'k0' is 5 in an earlier operand and 3 in operand 1 (operands f32[a0 2, "
        "a1 5], "
        "f32[a0 3, a1 4]; rule l0 k0, k0 n0 -> l0 n0; reduced k0)");
  CHECK(error_of([&] { builder.write(StateId(0), x, StateWrite::Mode::assign); }) ==
        "1: function f: state w is f32[a0 3, a1 4], but f32[a0 2, a1 5] is written to it");
  CHECK(error_of([&] {
          static_cast<void>(builder.call("layer_norm", {x, builder.input("g", type_of({5}))}, {{"epsilon", 1e-5}}));
        }) == "1: op layer_norm has 3 results where one is taken");
  CHECK(error_of([&] { differentiate(builder, x); }) == "1: the loss of function f is not a scalar: f32[a0 2, a1 5]");
}

TEST_CASE("a reshape has the axis names it is given, and its gradient has the operand's", "[graph]") {
  struct Reshape {
    TensorType from;
    std::vector<std::int64_t> shape;
    std::string axes;
  };
  const auto named = [](std::vector<std::int64_t> shape, std::vector<std::string> axes) {
    return TensorType{.dtype = DType::f32, .shape = std::move(shape), .axes = std::move(axes)};
  };
  for (const auto& [from, shape, axes] : {
           Reshape{named({1, 6}, {"batch", "features"}), {1, 1, 6}, "channel batch features"},
           Reshape{named({1, 1, 6}, {"channel", "batch", "features"}), {1, 6}, "batch features"},
           Reshape{named({4, 6}, {"batch", "features"}), {4, 6}, "rows values"},
           Reshape{named({1, 1, 1}, {"a", "b", "c"}), {1, 1}, "c a"},
           Reshape{named({3, 3}, {"batch", "batch"}), {9}, "pair"},
           Reshape{named({9}, {"pair"}), {3, 3}, "batch batch"},
       }) {
    Graph graph;
    FunctionBuilder builder(graph, "f", Role::on_demand, 1);
    const ValueId x = builder.input("x", from);
    const Attributes attributes = {{"shape", shape}, {"axes", axes}};
    const ValueId y = builder.call("reshape", {x}, attributes);
    CHECK(fmt::format("{}", fmt::join(builder.type(y).axes, " ")) == axes);
    const ValueId gradient = find_op("reshape").gradient(builder, {attributes, {x}, {y}, {y}, 0});
    CHECK(to_string(builder.type(gradient)) == to_string(from));
  }
}

TEST_CASE("an iota beyond the integers that its type counts exactly is refused", "[graph]") {
  Graph graph;
  FunctionBuilder builder(graph, "f", Role::on_demand, 1);
  const auto refused = [&](std::int64_t rows, const char* dtype) {
    return error_of([&] {
      static_cast<void>(builder.call("iota", {}, {{"rows", rows}, {"axis", "x"}, {"dtype", dtype}}));
    });
  };
  CHECK(refused((1 << 24) + 1, "f32") == "nothing");
  CHECK_THAT(refused((1 << 24) + 2, "f32"), Contains("op iota: f32 counts exactly to 16777216, and 16777218 rows"));
  CHECK(refused(std::int64_t{1} << 31U, "i32") == "nothing");
  CHECK_THAT(refused((std::int64_t{1} << 31U) + 1, "i32"), Contains("i32 counts exactly to 2147483647"));
}

TEST_CASE("an invalid name for a new dimension is refused", "[graph]") {
  Graph graph;
  FunctionBuilder builder(graph, "f", Role::on_demand, 1);
  for (const char* axis : {"", "two words"}) {
    CHECK_THAT(
        error_of([&] {
          static_cast<void>(builder.call("iota", {}, {{"rows", std::int64_t{3}}, {"axis", axis}, {"dtype", "f32"}}));
        }),
        Contains("expected the name of the new dimension, without blanks"));
  }
}

TEST_CASE("shapes that do not fit together are refused", "[graph]") {
  Graph graph;
  FunctionBuilder builder(graph, "f", Role::on_demand, 1);
  const ValueId matrix = builder.input("x", type_of({2, 3}));
  const ValueId line = builder.input("line", type_of({4}));
  const auto refused = [&](const char* op, const std::vector<ValueId>& operands, const Attributes& attributes) {
    return error_of([&] { static_cast<void>(builder.call(op, operands, attributes)); });
  };
  using Sizes = std::vector<std::int64_t>;
  CHECK_THAT(refused("concatenate", {matrix, line}, {{"dim", std::int64_t{0}}}),
             Contains("op concatenate: f32[a0 2, a1 3] and f32[a0 4] differ in more than dimension 0"));
  CHECK_THAT(refused("concatenate", {matrix, builder.input("wide", type_of({2, 4}))}, {{"dim", std::int64_t{0}}}),
             Contains("factor 'a1' is 3 in an earlier operand and 4 in operand 1"));
  CHECK_THAT(refused("reshape", {matrix}, {{"shape", Sizes{4}}, {"axes", std::string("a")}}),
             Contains("op reshape: f32[a0 2, a1 3] cannot become [4]"));
  CHECK_THAT(refused("slice", {line}, {{"dim", std::int64_t{0}}, {"begin", std::int64_t{1}}, {"end", std::int64_t{5}}}),
             Contains("has no indices 1 to 5 along dimension 0"));
  CHECK_THAT(refused("transpose", {matrix}, {{"order", Sizes{0, 0}}}), Contains("must name each of 2 dimensions once"));
}
