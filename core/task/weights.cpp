#include "core/task/weights.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "core/base/error.h"
#include "core/job/raw.h"

namespace shardrun::task {
namespace {

constexpr const char* model_key = "shardrun.model";
constexpr const char* tokenizer_key = "shardrun.tokenizer";

std::span<const std::byte> as_bytes(const device::TensorView& view) {
  return {static_cast<const std::byte*>(view.data), static_cast<std::size_t>(view.elements()) * sizeof(float)};
}

const std::string& metadata_at(const checkpoint::SafetensorsFile& file, const char* key) {
  const auto found = file.metadata().find(key);
  if (found == file.metadata().end()) {
    throw Error(ErrorCode::data,
                fmt::format("'{}' has no metadata '{}': it was not written by a shardrun job; give the folder or the "
                            "weights.safetensors of one",
                            file.path().string(), key));
  }
  return found->second;
}

}  // namespace

void save_states(const std::filesystem::path& path, const graph::Graph& graph, graph::StateKind kind,
                 const runtime::Executor& executor, const checkpoint::Metadata& metadata) {
  if (executor.device().element_bytes(graph::DType::f32) != sizeof(float)) {
    throw Error(ErrorCode::internal, fmt::format("states of device {} are not float32", executor.device().name()));
  }
  std::vector<checkpoint::Tensor> tensors;
  for (std::size_t s = 0; s < graph.states.size(); ++s) {
    if (graph.states[s].kind == kind) {
      tensors.push_back({{graph.states[s].name, checkpoint::DType::f32, graph.states[s].type.shape},
                         as_bytes(executor.state(static_cast<graph::StateId>(s)))});
    }
  }
  checkpoint::write_safetensors(path, tensors, metadata);
}

checkpoint::Metadata describe_model(const job::Chosen& model, const models::ModelSettings& settings,
                                    const data::Tokenizer* tokenizer) {
  std::string section = fmt::format("[model]\nname = {}\n{}", model.name, job::to_string(settings.options));
  const models::Model& declared = *models::find_model(model.name);
  const bool takes_vocab = std::any_of(declared.options.begin(), declared.options.end(),
                                       [](const job::OptionSpec& spec) { return spec.name == "vocab"; });
  if (takes_vocab && !settings.options.has("vocab")) {
    section += fmt::format("vocab = {}\n", settings.data.vocab);
  }
  checkpoint::Metadata metadata{{"format", "pt"}, {model_key, std::move(section)}};
  if (tokenizer != nullptr) {
    metadata[tokenizer_key] = tokenizer->to_json();
  }
  return metadata;
}

TrainedModel read_model(const checkpoint::SafetensorsFile& file) {
  const job::RawJob raw = job::read_job_text(metadata_at(file, model_key), file.path());
  const job::RawSection* section = raw.find("model");
  const job::RawSetting* name = section == nullptr ? nullptr : section->find("name");
  TrainedModel trained;
  trained.model = name == nullptr ? nullptr : models::find_model(name->value);
  if (trained.model == nullptr) {
    throw Error(ErrorCode::data, fmt::format("'{}' holds the model '{}', which this version does not have; it has {}",
                                             file.path().string(), name == nullptr ? "" : name->value,
                                             fmt::join(models::model_names(), ", ")));
  }
  std::vector<std::pair<std::string_view, std::string_view>> settings;
  for (const job::RawSetting& setting : section->settings) {
    if (setting.key != "name") {
      settings.emplace_back(setting.key, setting.value);
    }
  }
  trained.settings.options = job::make_options(trained.model->options, settings);
  if (file.metadata().contains(tokenizer_key)) {
    trained.tokenizer = data::Tokenizer::from_json(metadata_at(file, tokenizer_key));
    trained.settings.data.vocab = trained.tokenizer->vocabulary();
  }
  return trained;
}

void load_parameters(const checkpoint::SafetensorsFile& file, const graph::Graph& graph,
                     const runtime::Executor& executor) {
  for (std::size_t s = 0; s < graph.states.size(); ++s) {
    const graph::State& state = graph.states[s];
    if (state.kind != graph::StateKind::parameter) {
      continue;
    }
    const checkpoint::Tensor& tensor = file.at(state.name);
    if (tensor.info.dtype != checkpoint::DType::f32 || tensor.info.shape != state.type.shape) {
      throw Error(ErrorCode::data,
                  fmt::format("'{}': tensor {} should be F32 [{}], found {} [{}]", file.path().string(), state.name,
                              fmt::join(state.type.shape, ", "), checkpoint::to_string(tensor.info.dtype),
                              fmt::join(tensor.info.shape, ", ")));
    }
    const device::TensorView view = executor.state(static_cast<graph::StateId>(s));
    std::memcpy(view.data, tensor.bytes.data(), tensor.bytes.size());
  }
}

}  // namespace shardrun::task
