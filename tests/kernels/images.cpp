// Compares layers for images, written as in a plugin, with PyTorch's: layers/images.txt, made by
// bench/fixtures/make_image_layers.py. They run whole, and with the batch or a dimension of the image split.

#include <shardrun/sdk/model/math.hpp>

#include <cmath>
#include <fstream>
#include <map>
#include <sstream>

#include "core/device/elements.h"
#include "core/runtime/interpreter.h"
#include "plugins/loader/function_recorder.h"
#include "tests/kernels/compare.h"
#include "tests/support/catch.h"
#include "tests/support/parts.h"
#include "tests/support/plans.h"

using namespace shardrun;
using namespace shardrun::test;

namespace {

struct Fixture {
  std::string layer;
  std::map<std::string, std::vector<double>> settings = {};
  std::map<std::string, Tensor> operands = {};
  Tensor dy = {};
  Tensor y = {};
  std::map<std::string, Tensor> gradients = {};

  [[nodiscard]] std::vector<std::int64_t> integers(const std::string& name) const {
    return {settings.at(name).begin(), settings.at(name).end()};
  }
};

/// The axes of an operand, which plans split by name.
std::vector<std::string> axes_of(const std::string& operand, std::size_t rank) {
  const std::vector<std::string> all = operand == "w"   ? std::vector<std::string>{"out", "in", "rows", "columns"}
                                       : operand == "x" ? std::vector<std::string>{"batch", "in", "height", "width"}
                                                        : std::vector<std::string>{"in"};
  return {all.begin(), all.begin() + static_cast<std::ptrdiff_t>(rank)};
}

Tensor read_tensor(std::istream& line, const std::string& name) {
  std::size_t rank = 0;
  line >> rank;
  std::vector<std::int64_t> shape(rank);
  for (std::int64_t& size : shape) {
    line >> size;
  }
  Tensor tensor = zeros({.dtype = graph::DType::f32, .shape = shape, .axes = axes_of(name == "y" ? "x" : name, rank)});
  for (double& value : tensor.values) {
    line >> value;
  }
  REQUIRE(line);
  return tensor;
}

std::vector<Fixture> read_fixtures() {
  std::vector<Fixture> fixtures;
  std::ifstream file(SHARDRUN_IMAGES);
  for (std::string text; std::getline(file, text);) {
    std::istringstream line(text);
    std::string kind;
    std::string name;
    line >> kind >> name;
    if (kind == "case") {
      fixtures.push_back({.layer = name});
      continue;
    }
    Fixture& fixture = fixtures.back();
    if (kind == "setting") {
      for (double value = 0; line >> value;) {
        fixture.settings[name].push_back(value);
      }
      continue;
    }
    Tensor tensor = read_tensor(line, kind == "dy" ? "y" : name);
    if (kind == "operand" || kind == "dy") {
      device::round_elements(graph::DType::f32, tensor.values);
    }
    (kind == "operand"    ? fixture.operands[name]
     : kind == "gradient" ? fixture.gradients[name]
     : kind == "dy"       ? fixture.dy
                          : fixture.y) = std::move(tensor);
  }
  return fixtures;
}

sdk::Value layer_of(const Fixture& fixture, const std::map<std::string, sdk::Value>& operands) {
  const sdk::Value& x = operands.at("x");
  if (fixture.layer == "batch_norm") {
    return batch_norm(x, operands.at("gain"), operands.at("bias"), fixture.settings.at("epsilon")[0]);
  }
  sdk::Sliding sliding = {.strides = fixture.integers("strides"), .padding = fixture.integers("padding")};
  if (fixture.layer == "conv") {
    sliding.dilation = fixture.integers("dilation");
    sliding.groups = fixture.integers("groups")[0];
    return conv(x, operands.at("w"), sliding);
  }
  return fixture.layer == "max_pool"
             ? max_pool(x, fixture.integers("size"), sliding)
             : average_pool(x, fixture.integers("size"), sliding, fixture.integers("counts_padding")[0] != 0);
}

sdk::Dims dims_of_type(const graph::TensorType& type) {
  sdk::Dims dims;
  for (std::size_t d = 0; d < type.shape.size(); ++d) {
    dims.push_back({type.axes[d], type.shape[d]});
  }
  return dims;
}

/// y and the gradients, by name, on a device and as split by a plan.
std::map<std::string, Tensor> run_layer(const Fixture& fixture, const device::Device& device, const plan::Plan& plan) {
  graph::Graph graph;
  graph.states.push_back({.name = "y", .type = fixture.y.type, .kind = graph::StateKind::field});
  for (const auto& [name, gradient] : fixture.gradients) {
    graph.states.push_back({.name = name, .type = gradient.type, .kind = graph::StateKind::field});
  }
  graph::FunctionBuilder builder(graph, "f", graph::Role::on_demand, 1);
  plugins::FunctionRecorder recorder(builder, 1, "");
  sdk::Function f(recorder.writer(), 1, false);
  std::map<std::string, sdk::Value> operands;
  for (const auto& [name, operand] : fixture.operands) {
    operands[name] = f.input("in/" + name, sdk::Element::f32, dims_of_type(operand.type));
  }
  const sdk::Value y = layer_of(fixture, operands);
  const sdk::Value dy = f.input("in/dy", sdk::Element::f32, dims_of_type(fixture.dy.type));
  const sdk::Value scalar = sum(y * dy);
  f.write("y", y);
  for (const auto& [name, operand] : fixture.gradients) {
    f.write(name, gradient(scalar, operands.at(name)));
  }
  builder.finish();

  runtime::Interpreter ranks(graph, partition::split(graph, plan), device, 1);
  for (std::size_t rank = 0; rank < ranks.ranks(); ++rank) {
    for (const auto& [name, operand] : fixture.operands) {
      write_part(operand, ranks.rank(rank).input(0, "in/" + name));
    }
    write_part(fixture.dy, ranks.rank(rank).input(0, "in/dy"));
  }
  ranks.run("f", 1, true, scalars_of_tests());

  std::map<std::string, Tensor> results;
  for (const graph::StateId s : graph.states.ids()) {
    Tensor whole = zeros(graph.states[s].type);
    std::vector<int> filled(whole.values.size(), 0);
    for (std::size_t rank = 0; rank < ranks.ranks(); ++rank) {
      CHECK(gather_part(ranks.rank(rank).state(s), whole, filled));
    }
    results[graph.states[s].name] = std::move(whole);
  }
  return results;
}

void check_fixture(const Fixture& fixture, const device::Device& device, const plan::Plan& plan) {
  const std::map<std::string, Tensor> results = run_layer(fixture, device, plan);
  CHECK(difference(results.at("y"), fixture.y, {.of_largest = 1e-5}) == "");
  for (const auto& [name, expected] : fixture.gradients) {
    INFO("gradient of " << name);
    CHECK(difference(results.at(name), expected, {.of_largest = 1e-5}) == "");
  }
}

}  // namespace

TEST_CASE("convolutions, pools and batch norm equal PyTorch's, with their gradients", "[kernels]") {
  const std::vector<Fixture> fixtures = read_fixtures();
  REQUIRE(fixtures.size() == 15);
  for (std::size_t i = 0; i < fixtures.size(); ++i) {
    for (const device::Device* device : {&reference(), &fast()}) {
      INFO("fixture " << i << ", " << fixtures[i].layer << " on " << device->name());
      check_fixture(fixtures[i], *device, plan_of({}, {}));
    }
  }
}

TEST_CASE("convolutions, pools and batch norm equal PyTorch's with batch, channels or image split", "[kernels]") {
  const std::vector<Fixture> fixtures = read_fixtures();
  for (std::size_t i = 0; i < fixtures.size(); ++i) {
    for (const auto& [axis, count] : {std::pair{"batch", 2U}, {"batch", 4U}, {"in", 2U}, {"out", 3U}, {"height", 3U}}) {
      INFO("fixture " << i << ", " << fixtures[i].layer << ", " << axis << " over " << count);
      check_fixture(fixtures[i], reference(), plan_of({{"m", count}}, {{axis, {"m"}}}));
    }
    INFO("fixture " << i << ", " << fixtures[i].layer << ", over 2 x 2");
    check_fixture(fixtures[i], fast(), plan_of({{"a", 2}, {"b", 2}}, {{"height", {"a"}}, {"width", {"b"}}}));
    check_fixture(fixtures[i], fast(), plan_of({{"a", 2}, {"b", 2}}, {{"batch", {"a"}}, {"height", {"b"}}}));
  }
}
