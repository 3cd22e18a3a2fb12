// Compares single ops and their gradients with PyTorch's: every case of tests/kernels/fixtures
// (bench/fixtures/make_op_results.py says how they are written).

#include <filesystem>
#include <fstream>
#include <sstream>

#include "core/graph/builder.h"
#include "tests/kernels/compare.h"
#include "tests/support/catch.h"

using namespace shardrun;
using namespace shardrun::test;

namespace {

struct Fixture {
  std::string title;
  std::string op;
  graph::Attributes attributes;
  std::vector<Tensor> operands;
  Tensor result;
  Tensor cotangent;
  std::map<std::size_t, Tensor> gradients;  ///< of some operands
};

/// Reads the shape and the values from a text such as "3 2 : 0.5 1 …".
Tensor read_tensor(std::istringstream& line) {
  std::vector<std::int64_t> shape;
  std::string word;
  while (line >> word && word != ":") {
    shape.push_back(std::stoll(word));
  }
  Tensor tensor = zeros(type_of(std::move(shape)));
  for (double& value : tensor.values) {
    line >> word;
    value = std::stod(word);
  }
  REQUIRE(line);
  return tensor;
}

void read_attribute(std::istringstream& line, graph::Attributes& attributes) {
  std::string name;
  std::string kind;
  std::string value;
  line >> name >> kind >> value;
  if (kind == "integer") {
    attributes.add(name, std::int64_t{std::stoll(value)});
  } else if (kind == "real") {
    attributes.add(name, std::stod(value));
  } else {
    attributes.add(name, value);
  }
}

std::vector<Fixture> read_fixtures(const std::filesystem::path& path) {
  std::vector<Fixture> fixtures;
  std::ifstream file(path);
  for (std::string text; std::getline(file, text);) {
    std::istringstream line(text);
    std::string what;
    line >> what;
    if (what == "case") {
      fixtures.emplace_back().title = text.substr(5);
    } else if (what == "op") {
      line >> fixtures.back().op;
    } else if (what == "attribute") {
      read_attribute(line, fixtures.back().attributes);
    } else if (what == "operand") {
      fixtures.back().operands.push_back(read_tensor(line));
    } else if (what == "result") {
      fixtures.back().result = read_tensor(line);
    } else if (what == "cotangent") {
      fixtures.back().cotangent = read_tensor(line);
    } else if (what == "gradient") {
      std::size_t operand = 0;
      line >> operand;
      fixtures.back().gradients[operand] = read_tensor(line);
    } else {
      REQUIRE(what.empty());
    }
  }
  return fixtures;
}

/// The op and the gradients of its operands, as a model would build them.
void check(const Fixture& fixture, const device::Device& device) {
  graph::Graph graph;
  graph::FunctionBuilder builder(graph, "f", graph::Role::on_demand, 1);
  std::map<graph::ValueId, Tensor> given;
  std::vector<graph::ValueId> inputs;
  for (const Tensor& operand : fixture.operands) {
    inputs.push_back(builder.input("operand" + std::to_string(inputs.size()), operand.type));
    given[inputs.back()] = operand;
  }
  const std::vector<graph::ValueId> outputs = builder.call_all(fixture.op, inputs, fixture.attributes);
  const graph::ValueId cotangent = builder.input("cotangent", fixture.cotangent.type);
  given[cotangent] = fixture.cotangent;
  std::vector<graph::ValueId> cotangents(outputs.size());
  cotangents[0] = cotangent;
  std::map<std::size_t, graph::ValueId> gradients;
  for (const auto& [operand, expected] : fixture.gradients) {
    const graph::Op& op = graph::find_op(fixture.op);
    gradients[operand] = op.gradient(builder, {fixture.attributes, inputs, outputs, cotangents, operand});
  }

  const IdVector<graph::ValueId, Tensor> values = evaluate(builder.function(), device, given, scalars_of_tests());

  CHECK(difference(values[outputs[0]], fixture.result, {.of_largest = 1e-5}) == "");
  for (const auto& [operand, expected] : fixture.gradients) {
    INFO("gradient of operand " << operand);
    CHECK(difference(values[gradients[operand]], expected, {.of_largest = 1e-5}) == "");
  }
}

}  // namespace

TEST_CASE("ops and their gradients are PyTorch's", "[kernels]") {
  std::size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(SHARDRUN_KERNEL_FIXTURES)) {
    const std::vector<Fixture> fixtures = read_fixtures(entry.path());
    INFO(entry.path().filename().string());
    CHECK_FALSE(fixtures.empty());
    for (const Fixture& fixture : fixtures) {
      for (const device::Device* device : {&fast(), &reference()}) {
        INFO(fixture.title << ", " << device->name());
        check(fixture, *device);
      }
    }
    ++files;
  }
  CHECK(files > 0);
}
