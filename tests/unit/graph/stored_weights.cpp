// Graphs whose matrices are kept in another type than the one that they compute in.

#include "core/graph/stored_weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "tests/support/catch.h"
#include "tests/support/model_cases.h"

using namespace shardrun;
using namespace shardrun::graph;
using namespace shardrun::test;

namespace {

Graph decoding(const char* model, const char* tied, DType weights, DType activations = DType::f32) {
  workload::ModelSettings settings =
      std::string_view(model) == "llama"
          ? model_settings(
                model,
                {{"layers", "2"}, {"heads", "2"}, {"width", "64"}, {"hidden", "48"}, {"context", "16"}, {"tied", tied}},
                {.vocab = 5})
          : model_settings(model, {{"layers", "2"}, {"heads", "2"}, {"width", "64"}, {"context", "16"}, {"tied", tied}},
                           {.vocab = 5});
  settings.caches = {.pages = 4, .page = 4, .of_sequence = 4};
  return workload::build_decoding(find_model(model), settings,
                                  {.slots = 3, .chunk = 4, .weights = weights, .activations = activations});
}

bool is_matrix(const State& state) {
  return state.kind == StateKind::parameter &&
         (state.name.ends_with("/weights") || state.name.starts_with("embedding/"));
}

/// The names of a function's cut points, each with the type of its value.
std::multimap<std::string, DType> cut_points(const Function& function) {
  std::multimap<std::string, DType> found;
  for (const Value& value : function.values) {
    if (!value.cut_point.empty()) {
      found.emplace(value.cut_point, value.type.dtype);
    }
  }
  return found;
}

}  // namespace

TEST_CASE("matrices are kept in 16 bits, and everything is computed in float32", "[graph]") {
  for (const DType dtype : {DType::bf16, DType::f16}) {
    for (const char* const model : {"gpt", "llama"}) {
      for (const char* const tied : {"true", "false"}) {
        CAPTURE(to_string(dtype), model, tied);
        const Graph graph = decoding(model, tied, dtype);
        const Graph plain = decoding(model, tied, DType::f32);
        for (const State& state : graph.states) {
          CAPTURE(state.name);
          CHECK(state.type.dtype == (is_matrix(state) ? dtype : DType::f32));
        }
        for (const Function& function : graph.functions) {
          for (const Node& node : function.nodes) {
            const Value& result = function.values[node.outputs[0]];
            CAPTURE(node.name);
            CHECK((node.op->name == "embedding" ? result.type.dtype == dtype : result.type.dtype == DType::f32));
          }
          CHECK(cut_points(function) == cut_points(*plain.find(function.name, function.rows)));
        }
      }
    }
  }
}

TEST_CASE("activations in bfloat16: products read a cast that they share, and everything else is float32", "[graph]") {
  for (const char* const model : {"gpt", "llama"}) {
    for (const char* const tied : {"true", "false"}) {
      CAPTURE(model, tied);
      const Graph graph = decoding(model, tied, DType::bf16, DType::bf16);
      const Graph plain = decoding(model, tied, DType::bf16);
      for (const Function& function : graph.functions) {
        std::set<ValueId> rounded;
        std::int64_t products = 0;
        for (const Node& node : function.nodes) {
          CAPTURE(node.name);
          const Value& result = function.values[node.outputs[0]];
          if (node.op->name == "cast" && node.attributes.text("dtype") == "bf16") {
            CHECK(result.type.dtype == DType::bf16);
            CHECK(function.values[node.inputs[0]].type.dtype == DType::f32);
            CHECK(rounded.insert(node.inputs[0]).second);  // once for each value
            continue;
          }
          CHECK(result.type.dtype == (node.op->name == "embedding" ? DType::bf16 : DType::f32));
          if (node.op->name == "matmul" || node.op->name == "einsum") {
            ++products;
            CHECK(function.values[node.inputs[0]].type.dtype == DType::bf16);
            CHECK(function.values[node.inputs[1]].type.dtype == DType::bf16);
            CHECK(has_fixed_order(node.attributes));
          }
        }
        CHECK(products == (std::string_view(model) == "llama" ? 2 * 7 + 1 : 2 * 4 + 1));
        CHECK(rounded.size() == 2 * 4 + 1);  // query, key and value share one, and so do gate and up
        CHECK(cut_points(function) == cut_points(*plain.find(function.name, function.rows)));
      }
    }
  }
}

TEST_CASE("an einsum that is not a product of two matrices keeps float32 activations", "[graph]") {
  Graph graph;
  graph.add_state({.name = "matrix", .type = {DType::f32, {4, 4}, {"a", "b"}}});
  FunctionBuilder builder(graph, "apply", Role::on_demand, 1);
  const ValueId x = builder.input("x", {DType::f32, {3, 4}, {"batch", "a"}});
  const ValueId product = builder.call("einsum", {x, builder.state("matrix")}, {{"spec", "ba,ac->bc"}}, "product");
  builder.output("y", builder.call("einsum", {product, builder.state("matrix")}, {{"spec", "bc,ac->ab"}}, "turned"));
  builder.finish();
  store_weights(graph, DType::bf16, DType::bf16);
  const Function& function = graph.functions.front();
  std::map<std::string, DType> first_operands;
  for (const Node& node : function.nodes) {
    first_operands[node.name] = function.values[node.inputs[0]].type.dtype;
  }
  CHECK(first_operands ==
        std::map<std::string, DType>{{"cast/x", DType::f32}, {"product", DType::bf16}, {"turned", DType::f32}});
}

TEST_CASE("activations stay float32 where weights are not bfloat16", "[graph]") {
  for (const DType weights : {DType::f32, DType::f16}) {
    const Graph graph = decoding("llama", "false", weights, DType::bf16);
    for (const Function& function : graph.functions) {
      CHECK(std::ranges::none_of(function.values, [](const Value& value) { return value.type.dtype == DType::bf16; }));
    }
  }
}

TEST_CASE("a parameter that is not only a matrix keeps float32", "[graph]") {
  Graph graph;
  const auto parameter = [&](const char* name) {
    return graph.add_state({.name = name, .type = {DType::f32, {4, 4}, {"a", "b"}}});
  };
  parameter("matrix");
  parameter("added");
  parameter("first");
  parameter("output");
  FunctionBuilder builder(graph, "apply", Role::on_demand, 1);
  const ValueId x = builder.input("x", {DType::f32, {3, 4}, {"batch", "a"}});
  const Attributes attributes = {{"contract", std::int64_t{1}}, {"transpose", std::int64_t{0}}};
  const ValueId matrix = builder.state("matrix");
  const ValueId added = builder.state("added");
  const ValueId sum = builder.call("add", {added, builder.call("matmul", {builder.state("first"), added}, attributes)});
  const ValueId y = builder.call("matmul", {x, matrix}, attributes);
  builder.output("y", builder.call("matmul", {y, sum}, attributes));
  builder.output("z", builder.call("matmul", {x, builder.state("output")}, attributes));
  builder.output("weights", builder.state("output"));
  builder.finish();
  store_weights(graph, DType::bf16);
  for (const State& state : graph.states) {
    CAPTURE(state.name);
    CHECK(state.type.dtype == (state.name == "matrix" ? DType::bf16 : DType::f32));
  }
}

TEST_CASE("int8 weights have rows last, and a scale for 32 elements of a row", "[graph]") {
  const auto type_of = [](const Graph& graph, const std::string& name) {
    return to_string(graph.states[graph.find_state(name)].type);
  };
  const Graph llama = decoding("llama", "true", DType::i8);
  const std::string query = "layer.0/attention/query/weights";
  CHECK(type_of(llama, query) == "i8[heads 2, head_dim 32, embed 64]");
  CHECK(type_of(llama, "scale/" + query) == "f16[heads 2, head_dim 32, embed/32 2]");
  const std::string output = "layer.0/attention/output/weights";
  CHECK(type_of(llama, output) == "i8[embed 64, heads 2, head_dim 32]");
  CHECK(type_of(llama, "scale/" + output) == "f16[embed 64, heads 2, head_dim/32 1]");
  const std::string down = "layer.0/mlp/down/weights";
  CHECK(type_of(llama, "scale/" + down) == "f16[embed 64, mlp/32 2]");
  CHECK(type_of(llama, "scale/embedding/tokens") == "f16[vocab 5, embed/32 2]");
  CHECK(type_of(llama, "final_norm/gain") == "f32[embed 64]");
  CHECK(parameter_count(llama) == parameter_count(decoding("llama", "true", DType::f32)));

  const Graph gpt = decoding("gpt", "false", DType::i8);  // its matrices have the summed dimensions first
  const std::string qkv = "layer.1/attention/qkv/weights";
  CHECK(type_of(gpt, qkv) == "i8[qkv 3, heads 2, head_dim 32, embed 64]");
  CHECK(gpt.states[gpt.find_state(qkv)].is_turned);
  CHECK_FALSE(gpt.states[gpt.find_state("head/weights")].is_turned);
  for (const Function& function : gpt.functions) {
    for (const Node& node : function.nodes) {
      CAPTURE(node.name);
      CHECK(node.op->name != "matmul");
      CHECK(node.op->name != "embedding");
      CHECK(function.values[node.outputs[0]].type.dtype == DType::f32);
    }
  }
}

TEST_CASE("a row of int8 weights is split only between blocks", "[graph]") {
  const Graph llama = decoding("llama", "true", DType::i8);
  const Function& function = llama.functions.front();
  const auto unit = [&](const std::string& name, const char* axis) {
    for (const Node& node : function.nodes) {
      for (const Factor& factor : node.rule.factors) {
        if (node.name == name && factor.axis == axis) {
          return factor.unit;
        }
      }
    }
    return std::int64_t{0};
  };
  CHECK(unit("layer.0/mlp/down", "mlp") == 32);
  CHECK(unit("layer.0/mlp/down", "embed") == 1);
  CHECK(unit("layer.0/attention/output", "heads") == 1);
  CHECK(unit("layer.0/attention/output", "head_dim") == 32);
}

TEST_CASE("weights that have no blocks become bfloat16", "[graph]") {
  Graph graph;
  graph.add_state({.name = "ragged", .type = {DType::f32, {4, 3, 20}, {"a", "heads", "head_dim"}}});
  graph.add_state({.name = "grouped", .type = {DType::f32, {4, 15, 4}, {"a", "heads", "head_dim"}}});
  graph.add_state({.name = "both_ways", .type = {DType::f32, {4, 4}, {"a", "b"}}});
  FunctionBuilder builder(graph, "apply", Role::on_demand, 1);
  const auto product = [&](const char* x, std::vector<std::int64_t> shape, const char* weights, const char* spec) {
    std::vector<std::string> axes(shape.size(), "");
    builder.output(
        fmt::format("{} {}", weights, spec),
        builder.call("einsum", {builder.input(x, {DType::f32, std::move(shape), axes}), builder.state(weights)},
                     {{"spec", spec}}));
  };
  product("x", {2, 3, 20}, "ragged", "bhd,ahd->ba");
  product("y", {2, 15, 4}, "grouped", "bhd,ahd->ba");
  product("z", {2, 4}, "both_ways", "ba,ca->bc");
  product("w", {2, 4}, "both_ways", "bc,ca->ba");
  builder.finish();
  store_weights(graph, DType::i8);
  CHECK(graph.states[graph.find_state("ragged")].type.dtype == DType::bf16);
  CHECK(graph.states[graph.find_state("both_ways")].type.dtype == DType::bf16);
  CHECK(graph.states[graph.find_state("grouped")].type.dtype == DType::i8);
  CHECK(graph.states[graph.find_state("scale/grouped")].type.shape == std::vector<std::int64_t>{4, 2, 1});
}
