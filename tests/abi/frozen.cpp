// Plugins built from the headers of a release as they were then, loaded by this tree's host.

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "core/graph/builder.h"
#include "core/conformance/evaluate.h"
#include "plugins/loader/model.h"
#include "plugins/loader/strategy.h"
#include "plugins/loader/transport.h"
#include "tests/support/catch.h"
#include "tests/support/errors.h"

#include <shardrun/model.h>
#include <shardrun/transport.h>

using namespace shardrun;
using namespace shardrun::test;
using namespace shardrun::plan;
using namespace shardrun::plugins;

namespace {

/// The folder of each release that has a plugin of this kind.
std::vector<std::filesystem::path> releases(const std::string& kind) {
  std::vector<std::filesystem::path> folders;
  for (const auto& entry : std::filesystem::directory_iterator(SHARDRUN_FROZEN)) {
    if (std::filesystem::exists(entry.path() / ("shardrun_" + kind + "_frozen.so"))) {
      folders.push_back(entry.path());
    }
  }
  REQUIRE_FALSE(folders.empty());
  return folders;
}

StrategyRequest request_of(std::uint32_t ranks) {
  StrategyRequest request;
  request.job.ranks = ranks;
  request.job.mesh = {{"data", 2}, {"model", ranks / 2}};
  request.options = {{"depth", std::int64_t{5}}, {"mode", std::string("tall")}};
  request.graph.tensors = {{SR_TENSOR_PARAMETER, "w", {8, 12}, {"embed", "mlp"}, 384, 0, 1},
                           {SR_TENSOR_STATE, "field", {9}, {"x"}, 36, -1, 0}};
  request.graph.axes = {{"batch", 16}, {"embed", 8}, {"mlp", 12}, {"x", 9}};
  request.graph.cut_points = {{"layer.0/residual", {16, 8}, {"batch", "embed"}, 512, 0}};
  request.graph.layers = {{"layer.0", 384, 10, 11, 12}};
  return request;
}

class MapHost final : public TransportHost {
 public:
  [[nodiscard]] bool aborted() const noexcept override { return false; }
  void store_set(const std::string& key, std::string value) override { values_[key] = std::move(value); }
  [[nodiscard]] std::string store_get(const std::string& key, std::int64_t) override { return values_.at(key); }

 private:
  std::map<std::string, std::string> values_;
};

}  // namespace

TEST_CASE("a strategy built with the headers of an older release reads its request and makes a plan", "[abi]") {
  for (const std::filesystem::path& release : releases("strategy")) {
    INFO(release.string());
    std::vector<std::string> lines;
    const Strategy frozen = Strategy::open(
        {release}, "frozen", [&](LogLevel, std::string_view, std::string_view text) { lines.emplace_back(text); });

    const plan::Plan plan = frozen.make_plan(request_of(4));

    CHECK(lines == std::vector<std::string>{"job of 4", "mesh data 2", "mesh model 2", "option depth 2 5 0 -",
                                            "option eager 1 1 0 -", "option mode 4 0 0 tall", "option share 3 0 0.5 -",
                                            "tensor w 1 [12 mlp] 384 bytes, layer 0, tied 1",
                                            "tensor field 2 [9 x] 36 bytes, layer -1, tied 0", "axis batch 16",
                                            "axis embed 8", "axis mlp 12", "axis x 9",
                                            "cut point layer.0/residual [16 batch] 512 bytes, layer 0",
                                            "layer layer.0 384 bytes, 10 11 12 FLOPs"});
    CHECK(plan.mesh == std::vector<MeshAxis>{{"data", 2}, {"model", 2}});
    CHECK(plan.axes == std::vector<AxisPlacement>{{"batch", {"data", "model"}}});
    CHECK(plan.tensors == std::vector<TensorPlacement>{{"w", TensorRole::store, {{"data"}, {}}},
                                                       {"w", TensorRole::use, {{"data"}, {}}},
                                                       {"w", TensorRole::gradient, {{"data"}, {}}},
                                                       {"w", TensorRole::optimizer, {{"data"}, {}}}});
    CHECK(plan.cut_points == std::vector<CutPointPlacement>{{"layer.0/residual", {{}, {"model"}}}});
    CHECK(plan.bucket_bytes == 4096);
    CHECK(error_of([&] { static_cast<void>(frozen.make_plan(request_of(3))); }) ==
          "2: strategy 'frozen': 3 ranks are no pairs: make them even");
  }
}

TEST_CASE("a transport built from the headers of a release moves data", "[abi]") {
  for (const std::filesystem::path& release : releases("transport")) {
    INFO(release.string());
    MapHost host;
    Transport frozen = Transport::load({release}, "frozen");
    std::array<float, 3> memory = {1, 2, 3};
    std::array<float, 3> result = {};
    CHECK(frozen.props().has(SR_TRANSPORT_SAME_HOST));
    CHECK(frozen.props().moves(SR_MEMORY_HOST));

    frozen.open({.job = "j1", .address = "127.0.0.1"}, host);
    const std::uint64_t registration = frozen.register_memory(memory.data(), sizeof(memory), -1);
    TransportGroup group = frozen.group({.rank = 0, .members = {0}, .name = "data", .id = 1});
    TransportOp op = group.prepare({{.opcode = SR_OP_ALL_REDUCE,
                                     .dtype = SR_DTYPE_F32,
                                     .reduction = SR_REDUCE_SUM,
                                     .id = 1,
                                     .count = memory.size(),
                                     .send_counts = {},
                                     .recv_counts = {},
                                     .send = sdk::Buffer{memory.data(), sizeof(memory), registration},
                                     .recv = sdk::Buffer{result.data(), sizeof(result)},
                                     .scratch = {},
                                     .label = "w"}},
                                   INT64_MAX);
    op.start(INT64_MAX);

    CHECK(op.test());
    CHECK(op.wait(INT64_MAX));
    CHECK(result == memory);
    CHECK(frozen.wire_bytes() == sizeof(memory));
    group.abort("enough");
    CHECK(group.error() == "it was aborted");
    CHECK(error_of([&] { op.start(INT64_MAX); }).ends_with("it was aborted"));
  }
}

TEST_CASE("a model built with the headers of an older release reads its request and makes a graph and an op", "[abi]") {
  for (const std::filesystem::path& release : releases("model")) {
    INFO(release.string());
    std::vector<std::string> lines;
    const Model frozen = Model::open(
        {release}, "frozen", [&](LogLevel, std::string_view, std::string_view text) { lines.emplace_back(text); });
    const ModelRequest request{
        .options = {{"width", std::int64_t{4}}}, .data = SR_DATA_LABELS, .vocab = 3, .features = 5, .outputs = 7};
    CHECK(frozen.help() == "a model of an earlier release");
    CHECK(frozen.data() == SR_DATA_LABELS);
    CHECK_THAT(error_of([&] {
                 graph::Graph without_data;
                 frozen.declare(without_data, {.options = request.options});
               }),
               Catch::StartsWith("2: [data] is missing, so features, outputs and vocab are 0: model 'frozen' (") &&
                   Catch::EndsWith("dimension 0 has size 0, expected at least 1"));
    lines.clear();

    graph::Graph graph;
    frozen.declare(graph, request);
    graph::FunctionBuilder builder(graph, "loss", graph::Role::repeated, 6);
    CHECK(frozen.write_function(builder, request, "loss", 6, true).values.exists());
    builder.finish();
    graph::FunctionBuilder iterate(graph, "iterate", graph::Role::once, 0);
    CHECK_FALSE(frozen.write_function(iterate, request, "iterate", 0, false).values.exists());
    iterate.finish();

    CHECK(lines == std::vector<std::string>{"job: data 4, vocab 3, features 5, outputs 7", "option width 2 4",
                                            "function 0: 6 rows, training 1", "type 1 [5 features]",
                                            "gradient of operand 0 of 1, factor 2: results 1",
                                            "job: data 4, vocab 3, features 5, outputs 7", "option width 2 4",
                                            "function 1: 0 rows, training 0"});
    CHECK(graph.layers == 2);
    REQUIRE(graph.states.size() == 2);
    CHECK(to_string(graph.states[graph::StateId(0)].type) == "f32[features 5, mlp 4]");
    CHECK(graph.states[graph::StateId(0)].decay);
    CHECK(graph.states[graph::StateId(0)].layer == 1);
    CHECK(graph.states[graph::StateId(1)].kind == graph::StateKind::field);
    CHECK(graph.cut_points.size() == 1);
    CHECK(graph.functions[1].writes.size() == 1);
    CHECK(graph.functions[1].outputs.size() == 1);
    REQUIRE(frozen.ops().size() == 1);
    CHECK(frozen.ops()[0]->rule == "b* -> b*");

    conformance::Tensor x = conformance::zeros(conformance::type_of({3}));
    x.values = {1, 2, 3};
    const graph::Attributes attributes = {{"factor", std::int64_t{2}}};
    for (const char* const device : {"cpu", "reference"}) {
      const std::vector<conformance::Tensor> results = conformance::execute(
          device::Device::find(device),
          {.op = "frozen.scaled", .attributes = attributes, .inputs = {x}, .outputs = {conformance::zeros(x.type)}});
      CHECK(results[0].values == std::vector<double>{2, 4, 6});
    }
  }
}
