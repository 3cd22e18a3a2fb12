// Graphs whose matrices are kept in another type than the one that they compute in.

#include "core/graph/stored_weights.h"

#include <map>

#include "tests/support/catch.h"
#include "tests/support/model_cases.h"

using namespace shardrun;
using namespace shardrun::graph;
using namespace shardrun::test;

namespace {

Graph decoding(const char* model, const char* tied, DType weights) {
  workload::ModelSettings settings =
      std::string_view(model) == "llama"
          ? model_settings(model,
                           {{"layers", "2"},
                            {"heads", "2"},
                            {"width", "64"},
                            {"hidden", "48"},
                            {"context", "16"},
                            {"tied", tied}},
                           {.vocab = 5})
          : model_settings(model, {{"layers", "2"}, {"heads", "2"}, {"width", "64"}, {"context", "16"}, {"tied", tied}},
                           {.vocab = 5});
  settings.caches = {.pages = 4, .page = 4, .of_sequence = 4};
  return workload::build_decoding(find_model(model), settings, {.slots = 3, .chunk = 4, .weights = weights});
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
