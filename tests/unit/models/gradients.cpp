// Compares the loss and gradients of whole models with PyTorch's (tests/fixtures/README.md).

#include <boost/json.hpp>
#include <cmath>
#include <cstring>
#include <filesystem>

#include "core/checkpoint/safetensors.h"
#include "core/partition/partition.h"
#include "core/runtime/executor.h"
#include "tests/support/catch.h"
#include "tests/support/model_cases.h"

using namespace shardrun;
using namespace shardrun::test;

namespace {

std::string written(const boost::json::value& value) {
  return value.is_string() ? std::string(value.get_string()) : boost::json::serialize(value);
}

/// The model and options in the fixture's metadata.
struct Described {
  const workload::Model* model = nullptr;
  workload::ModelSettings settings;
};

Described describe(const checkpoint::SafetensorsFile& file) {
  const boost::json::value json = boost::json::parse(file.metadata().at("shardrun.model"));
  Described described;
  std::vector<std::pair<std::string, std::string>> texts;
  for (const auto& [key, value] : json.as_object()) {
    if (key == "name") {
      described.model = &find_model(written(value));
    } else {
      texts.emplace_back(key, key == "dropout" ? "0" : written(value));
    }
  }
  const std::vector<job::WrittenSetting> settings(texts.begin(), texts.end());
  described.settings.options = job::make_options(described.model->options, settings);
  return described;
}

/// Rows [begin, begin + the type's first dimension) of a tensor of the file.
Tensor read(const checkpoint::Tensor& source, const graph::TensorType& type, std::int64_t begin = 0) {
  Tensor tensor = zeros(type);
  const std::size_t skipped =
      begin == 0 ? 0 : static_cast<std::size_t>(begin) * tensor.values.size() / static_cast<std::size_t>(type.shape[0]);
  REQUIRE((skipped + tensor.values.size()) * 4 <= source.bytes.size());
  for (std::size_t i = 0; i < tensor.values.size(); ++i) {
    const std::byte* at = source.bytes.data() + 4 * (skipped + i);
    std::int32_t integer = 0;
    float real = 0;
    std::memcpy(&integer, at, 4);
    std::memcpy(&real, at, 4);
    tensor.values[i] = type.dtype == graph::DType::i32 ? static_cast<double>(integer) : static_cast<double>(real);
  }
  return tensor;
}

double relative_distance(const Tensor& found, const Tensor& expected) {
  double difference = 0;
  double norm = 0;
  for (std::size_t i = 0; i < expected.values.size(); ++i) {
    difference += std::pow(found.values[i] - expected.values[i], 2);
    norm += std::pow(expected.values[i], 2);
  }
  return std::sqrt(difference / norm);
}

void load_parameters(const checkpoint::SafetensorsFile& file, const graph::Graph& graph,
                     const runtime::Executor& executor) {
  for (const graph::StateId s : graph.states.ids()) {
    if (graph.states[s].kind == graph::StateKind::parameter) {
      const checkpoint::Tensor& tensor = file.at("parameters/" + graph.states[s].name);
      REQUIRE(tensor.info.shape == graph.states[s].type.shape);
      write_view(read(tensor, graph.states[s].type), executor.state(s));
    }
  }
}

/// Runs the microbatches of one step, and compares the states `loss` and `gradients/…` with the file.
void check(const checkpoint::SafetensorsFile& file, const char* device_name, std::int64_t microbatches) {
  const Described described = describe(file);
  const device::Device& device = device::Device::find(device_name);
  const std::int64_t batch = file.at("data/inputs").info.shape[0];
  const graph::Graph graph =
      workload::build_training(*described.model, described.settings, {.batch = batch, .microbatches = microbatches});
  runtime::Executor executor(partition::programs_of(graph, device, 2), device);
  load_parameters(file, graph, executor);

  std::int64_t done = 0;
  for (const std::int64_t rows : workload::microbatch_rows(batch, microbatches)) {
    const graph::Function& micro = *graph.find("micro", rows);
    const std::size_t program = executor.find("micro", rows);
    for (const graph::Port& port : micro.inputs) {
      const graph::TensorType& type = micro.values[port.value].type;
      write_view(read(file.at("data/" + port.name), type, done), executor.input(program, port.name));
    }
    executor.run(program, {.first_sample = done, .first_microbatch = done == 0});
    done += rows;
  }

  const auto state = [&](const std::string& name) {
    const graph::StateId id = graph.find_state(name);
    REQUIRE(id.exists());
    return read_view(graph.states[id].type, executor.state(id));
  };
  CHECK(state("loss").values[0] == Approx(read(file.at("loss"), type_of({1})).values[0]).epsilon(1e-5));
  std::size_t compared = 0;
  for (const checkpoint::Tensor& tensor : file.tensors()) {
    if (tensor.info.name.starts_with("gradients/")) {
      INFO(tensor.info.name);
      CHECK(relative_distance(state(tensor.info.name), read(tensor, type_of(tensor.info.shape))) < 1e-5);
      ++compared;
    }
  }
  CHECK(compared > 0);
  CHECK(2 * compared + 3 == file.tensors().size());
}

}  // namespace

TEST_CASE("loss and gradients are PyTorch's, in one microbatch and in uneven ones", "[models]") {
  std::size_t files = 0;
  for (const auto& entry : std::filesystem::directory_iterator(SHARDRUN_FIXTURES)) {
    ++files;
    for (const char* device : {"cpu", "reference"}) {
      for (const std::int64_t microbatches : {1, 2, 3}) {
        DYNAMIC_SECTION(entry.path().stem().string() << ", " << device << ", " << microbatches << " microbatches") {
          check(checkpoint::SafetensorsFile(entry.path()), device, microbatches);
        }
      }
    }
  }
  CHECK(files == 6);
}
