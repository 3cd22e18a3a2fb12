// Recomputation: what lasts from forward to backward, and which nodes are repeated where.

#include "core/graph/rewrites.h"

#include <algorithm>
#include <map>
#include <set>

#include "tests/support/catch.h"
#include "tests/support/model_cases.h"

using namespace shardrun;
using namespace shardrun::graph;
using namespace shardrun::test;

namespace {

using Names = std::set<std::string>;

bool is_clone(const Node& node) { return node.name.starts_with("recompute/"); }

/// The name of the node of which the node with this name is a clone.
std::string original(const std::string& name) { return name.substr(std::string("recompute/").size()); }

const Node* producer(const Function& function, ValueId id) {
  const NodeId node = function.values[id].producer;
  return node.exists() ? &function.nodes[node] : nullptr;
}

/// The results of forward in layers that backward reads without computing them again.
Names kept_in_layers(const Graph& graph) {
  const Function& function = *graph.find("micro", 2);
  Names names;
  for (const Node& node : function.nodes) {
    for (const ValueId id : node.inputs) {
      const Node* made_by = producer(function, id);
      if (node.phase != Phase::forward && made_by != nullptr && made_by->phase == Phase::forward &&
          made_by->layer >= 0 && made_by->layer < graph.layers) {
        names.insert(function.values[id].name);
      }
    }
  }
  return names;
}

Names of_layers(std::int64_t layers, const Names& names) {
  Names all;
  for (std::int64_t layer = 0; layer < layers; ++layer) {
    for (const std::string& name : names) {
      all.insert("layer." + std::to_string(layer) + "/" + name);
    }
  }
  return all;
}

ModelCase gpt(Remat remat, const char* bias = "false", const char* dropout = "0") {
  return training_case(
      "", "gpt",
      {{"layers", "3"}, {"heads", "2"}, {"width", "4"}, {"context", "3"}, {"bias", bias}, {"dropout", dropout}},
      {.vocab = 5}, {.batch = 2, .remat = remat});
}

/// The ops that are computed again, and how often.
std::map<std::string, int> repeated_ops(const Function& function) {
  std::map<std::string, int> ops;
  for (const Node& node : function.nodes) {
    if (is_clone(node)) {
      ++ops[node.op->name];
    }
  }
  return ops;
}

/// The nodes that are no clones, in order, without their operands.
std::vector<std::string> nodes_but_clones(const Function& function) {
  std::vector<std::string> nodes;
  for (const Node& node : function.nodes) {
    if (!is_clone(node)) {
      nodes.push_back(node.name + " " + node.op->name + to_string(node.attributes) + to_string(node.phase) +
                      std::to_string(node.layer));
    }
  }
  return nodes;
}

}  // namespace

TEST_CASE("with layer recomputation backward keeps only the inputs of layers", "[graph]") {
  for (const auto& [bias, dropout] : {std::pair{"false", "0"}, std::pair{"true", "0.3"}}) {
    const ModelCase model = gpt(Remat::layer, bias, dropout);
    // No layer makes the first layer's input.
    CHECK(kept_in_layers(model.graph) == of_layers(3, {"residual"}));
  }
}

TEST_CASE("a layer is computed again only as far as its gradients read it", "[graph]") {
  const ModelCase model = gpt(Remat::layer);
  // In each layer: normalisations; qkv, output of attention, first of the mlp but not the second; one residual sum.
  CHECK(
      repeated_ops(*model.graph.find("micro", 2)) ==
      std::map<std::string, int>{{"layer_norm", 3 * 2}, {"matmul", 3 * 3}, {"attention", 3}, {"add", 3}, {"gelu", 3}});
}

TEST_CASE("selective recomputation computes cheap ops again, unless that would keep more", "[graph]") {
  const ModelCase model = gpt(Remat::selective);
  CHECK(kept_in_layers(model.graph) ==
        of_layers(3, {"attention/qkv", "attention", "attention.1", "attention_residual", "mlp/up", "residual"}));
  CHECK(repeated_ops(*model.graph.find("micro", 2)) == std::map<std::string, int>{{"layer_norm", 3 * 2}, {"gelu", 3}});
}

TEST_CASE("a sum with a bias is kept instead of the product that only the sum reads", "[graph]") {
  const Names unchanged = kept_in_layers(gpt(Remat::none, "true", "0.3").graph);
  const ModelCase model = gpt(Remat::selective, "true", "0.3");
  const Names kept = kept_in_layers(model.graph);
  CHECK(std::includes(unchanged.begin(), unchanged.end(), kept.begin(), kept.end()));
  CHECK_FALSE(kept.contains("layer.0/attention/qkv"));
  CHECK_FALSE(kept.contains("layer.0/mlp/up"));
  CHECK(repeated_ops(*model.graph.find("micro", 2)) == std::map<std::string, int>{{"layer_norm", 3 * 2}, {"gelu", 3}});
}

TEST_CASE("without recomputation a function is unchanged", "[graph]") {
  for (const ModelCase& model : model_cases()) {
    for (const Function& function : model.graph.functions) {
      Graph before = model.graph;
      before.functions = {function};
      Graph after = before;
      after.functions = {rematerialize(function, Remat::none, before.layers)};
      CHECK(to_string(after) == to_string(before));
    }
  }
}

TEST_CASE("only the function micro computes anything again", "[graph]") {
  for (const ModelCase& model : training_cases(Remat::layer)) {
    for (const Function& function : model.graph.functions) {
      if (function.name != "micro") {
        CHECK(repeated_ops(function).empty());
      }
    }
  }
}

TEST_CASE("each node is computed again at most once, unchanged, in its layer and just before its reader", "[graph]") {
  for (const Remat remat : {Remat::layer, Remat::selective}) {
    for (const ModelCase& model : training_cases(remat)) {
      for (const Function& function : model.graph.functions) {
        std::map<std::string, const Node*> by_name;
        for (const Node& node : function.nodes) {
          INFO(model.name << ", " << node.name);
          CHECK(by_name.emplace(node.name, &node).second);
          if (is_clone(node)) {
            REQUIRE(by_name.contains(original(node.name)));
            const Node& repeated = *by_name.at(original(node.name));
            CHECK(repeated.phase == Phase::forward);
            CHECK(repeated.layer >= 0);
            CHECK(node.phase == Phase::backward_input);
            CHECK(node.layer == repeated.layer);
            CHECK(node.op == repeated.op);
            CHECK(to_string(node.attributes) == to_string(repeated.attributes));
            CHECK(node.outputs.size() == repeated.outputs.size());
          }
        }
        for (const NodeId n : function.nodes.ids()) {
          if (is_clone(function.nodes[n])) {
            const auto reads = [&](const Node& reader) {
              return std::any_of(reader.inputs.begin(), reader.inputs.end(),
                                 [&](ValueId id) { return function.values[id].producer == n; });
            };
            const auto next = function.nodes.begin() + n.number() + 1;
            const auto reader = std::find_if(next, function.nodes.end(),
                                             [&](const Node& node) { return !is_clone(node) || reads(node); });
            INFO(model.name << ", " << function.nodes[n].name);
            REQUIRE(reader != function.nodes.end());
            CHECK(reads(*reader));
            CHECK(reader->phase != Phase::forward);
          }
        }
      }
    }
  }
}

TEST_CASE("original nodes stay in their order", "[graph]") {
  const std::vector<ModelCase> before = training_cases(Remat::none);
  for (const Remat remat : {Remat::layer, Remat::selective}) {
    const std::vector<ModelCase> after = training_cases(remat);
    for (std::size_t m = 0; m < before.size(); ++m) {
      REQUIRE(after[m].graph.functions.size() == before[m].graph.functions.size());
      for (std::size_t f = 0; f < before[m].graph.functions.size(); ++f) {
        const Function& function = after[m].graph.functions[f];
        CHECK(nodes_but_clones(function) == nodes_but_clones(before[m].graph.functions[f]));
        for (const ValueId v : function.values.ids()) {
          const Node* made_by = producer(function, v);
          CHECK((made_by == nullptr || std::count(made_by->outputs.begin(), made_by->outputs.end(), v) == 1));
        }
      }
    }
  }
}

TEST_CASE("a value computed again has the cut point of the original", "[graph]") {
  const ModelCase model = gpt(Remat::layer);
  Names points;
  for (const Value& value : model.graph.find("micro", 2)->values) {
    if (value.name.starts_with("recompute/") && !value.cut_point.empty()) {
      CHECK(value.cut_point == original(value.name));
      points.insert(value.cut_point);
    }
  }
  CHECK(points == of_layers(3, {"attention_residual"}));
}
