#include "core/checkpoint/weights.h"

#include <cmath>
#include <cstring>

#include "core/partition/partition.h"
#include "core/train/training.h"
#include "tests/support/catch.h"
#include "tests/support/compiled_job.h"
#include "tests/support/errors.h"
#include "tests/support/model_cases.h"

using namespace shardrun;
using namespace shardrun::test;

namespace {

/// A trained job's weights in `weights.safetensors` of a folder.
struct Saved {
  TemporaryFolder folder;
  std::filesystem::path path = folder / "weights.safetensors";
  job::Job job;
  compile::Compiled compiled;
  train::Training training;

  explicit Saved(const std::vector<std::string>& overrides = {})
      : job(text_job_in(folder, overrides)), compiled(compile_ready(job)), training(job, compiled) {
    training.initialize();
    static_cast<void>(training.step(0));
    const checkpoint::Metadata metadata =
        checkpoint::describe_model(compiled.model, compiled.settings, compiled.dataset->tokenizer());
    checkpoint::save_states(checkpoint::state_file(path, compiled.graph, graph::StateKind::parameter, metadata),
                            compiled.graph, compiled.partition, training.executor(), 0);
  }
};

std::vector<std::byte> bytes_of_state(const graph::Graph& graph, const runtime::Executor& executor,
                                      const std::string& name) {
  const device::TensorView view = executor.state(graph.find_state(name));
  const auto* data = static_cast<const std::byte*>(view.data);
  return {data, data + static_cast<std::size_t>(view.elements()) * sizeof(float)};
}

std::string read_error(const std::filesystem::path& path) {
  return error_of(
      [&] { static_cast<void>(checkpoint::read_model(checkpoint::SafetensorsFile(path), built_models())); });
}

}  // namespace

TEST_CASE("a trained model is read back with its options, tokenizer and every bit of its parameters", "[checkpoint]") {
  Saved saved({"model.tied=false", "model.bias=true", "model.gelu=erf"});
  const checkpoint::SafetensorsFile file(saved.path);

  const checkpoint::TrainedModel trained = checkpoint::read_model(file, built_models());
  const graph::Graph graph = workload::build_prediction(trained.model, trained.settings);
  const device::Device& cpu = device::Device::find("cpu");
  const runtime::Executor executor(partition::programs_of(graph, cpu, 1), cpu);
  checkpoint::load_parameters(file, graph, executor);

  CHECK(trained.model.name == "gpt");
  CHECK(trained.settings.options.text("gelu") == "erf");
  CHECK(trained.settings.options.integer("vocab") == saved.compiled.dataset->shape().vocab);
  CHECK(*trained.tokenizer == *saved.compiled.dataset->tokenizer());
  std::size_t compared = 0;
  for (const graph::State& state : graph.states) {
    INFO(state.name);
    CHECK(bytes_of_state(graph, executor, state.name) ==
          bytes_of_state(saved.compiled.graph, saved.training.executor(), state.name));
    ++compared;
  }
  CHECK(compared == file.tensors().size());
  CHECK(file.metadata().at("format") == "pt");
}

TEST_CASE("a model without text has no tokenizer", "[checkpoint]") {
  const workload::ModelSettings settings = model_settings("mlp", {{"hidden", "3"}, {"inputs", "2"}, {"outputs", "1"}});
  const TemporaryFolder folder;
  checkpoint::write_safetensors(folder / "w", {}, checkpoint::describe_model(find_model("mlp"), settings, nullptr));
  const checkpoint::TrainedModel trained =
      checkpoint::read_model(checkpoint::SafetensorsFile(folder / "w"), built_models());
  CHECK(trained.model.name == "mlp");
  CHECK_FALSE(trained.tokenizer.has_value());
  CHECK(trained.settings.options.integer("hidden") == 3);
}

TEST_CASE("files that are not trained models are refused", "[checkpoint]") {
  const TemporaryFolder folder;
  const std::filesystem::path path = folder / "w.safetensors";
  checkpoint::write_safetensors(path, {}, {});
  CHECK(read_error(path) ==
        "2: '" + path.string() +
            "' has no metadata 'shardrun.model': it was not written by a shardrun job; give the folder or "
            "the weights.safetensors of one");
  checkpoint::write_safetensors(path, {}, {{"shardrun.model", "[model]\nname = rnn\n"}});
  CHECK(read_error(path) ==
        "2: '" + path.string() +
            "' holds the model 'rnn', which this version does not have; it has gpt, heat1d, heat2d, llama, mlp, sin");
  checkpoint::write_safetensors(path, {}, {{"shardrun.model", "[model]\n"}});
  CHECK(read_error(path).find("2: ") == 0);
  checkpoint::write_safetensors(path, {}, {{"shardrun.model", "[model]\nname = mlp\nhidden = -3\n"}});
  CHECK(read_error(path).find("hidden") != std::string::npos);
}

TEST_CASE("parameters that are missing or of another shape are named", "[checkpoint]") {
  const Saved saved;
  const checkpoint::SafetensorsFile file(saved.path);
  const device::Device& cpu = device::Device::find("cpu");
  const auto error_with = [&](const char* layers, const char* width) {
    const graph::Graph graph = workload::build_prediction(
        find_model("gpt"),
        model_settings("gpt", {{"layers", layers}, {"heads", "2"}, {"width", width}, {"context", "16"}},
                       {.vocab = saved.compiled.dataset->shape().vocab}));
    const runtime::Executor executor(partition::programs_of(graph, cpu, 1), cpu);
    return error_of([&] { checkpoint::load_parameters(file, graph, executor); });
  };
  CHECK(error_with("1", "16") == "nothing");
  CHECK(error_with("3", "16").find("layer.2/attention_norm/gain") != std::string::npos);
  const std::string vocab = std::to_string(saved.compiled.dataset->shape().vocab);
  CHECK(error_with("2", "8") == "2: '" + saved.path.string() + "': tensor embedding/tokens should be F32 [" + vocab +
                                    ", 8], found F32 [" + vocab + ", 16]");
}

TEST_CASE("weights that are not numbers are named with their place", "[checkpoint]") {
  const Saved saved;
  const graph::Graph graph = workload::build_prediction(
      find_model("gpt"), model_settings("gpt", {{"layers", "1"}, {"heads", "2"}, {"width", "16"}, {"context", "16"}},
                                        {.vocab = saved.compiled.dataset->shape().vocab}));
  const device::Device& cpu = device::Device::find("cpu");
  const runtime::Executor executor(partition::programs_of(graph, cpu, 1), cpu);
  const std::string name = "layer.0/mlp/up/weights";
  const std::string good = read_file(saved.path);
  const auto error_with = [&](float value) {
    std::string bytes = good;
    {
      const checkpoint::SafetensorsFile file(saved.path);
      const auto tensor = file.at(name).bytes;
      const std::size_t begin = good.find({reinterpret_cast<const char*>(tensor.data()), tensor.size()});
      REQUIRE(begin != std::string::npos);
      const auto columns = static_cast<std::size_t>(file.at(name).info.shape.at(1));
      std::memcpy(bytes.data() + begin + (3 * columns + 5) * sizeof(float), &value, sizeof(value));
    }
    const std::filesystem::path changed = saved.path.string() + ".changed";
    write_file(changed, bytes);
    const checkpoint::SafetensorsFile file(changed);
    return error_of([&] { checkpoint::load_parameters(file, graph, executor); });
  };

  CHECK(error_with(std::nanf("")).find("': tensor " + name + " has NaN at [3, 5] (counted from 0)") !=
        std::string::npos);
  CHECK(error_with(HUGE_VALF).find("tensor " + name + " has Inf at [3, 5]") != std::string::npos);
  CHECK(error_with(-HUGE_VALF).find("tensor " + name + " has -Inf at [3, 5]") != std::string::npos);
  CHECK(error_with(1e38F) == "nothing");
}
