#include "core/train/running_engine.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <span>

#include "core/base/error.h"
#include "core/checkpoint/safetensors.h"

namespace shardrun::train {

using plugins::EngineParameter;

RunningEngine::RunningEngine(const job::Job& job, const compile::Compiled& compiled, RankLink& link,
                             runtime::Executor& executor) {
  const compile::JobEngine& engine = *compiled.engine;
  ranks_ = std::make_unique<runtime::ArrayCollectives>(link.collectives(), engine.request.rank,
                                                       engine.request.world_size, engine.plugin.has_messages());
  ranks_->record_with(executor);
  set_first_values(job, compiled, executor);
  std::vector<plugins::NamedArray> parameters;
  for (const EngineParameter& parameter : engine.own()) {
    parameters.push_back(array_in_arena(parameter, "", compiled.graph, executor));
  }
  instance_ = engine.plugin.create(engine.request, parameters, *ranks_);
  if (!job.checkpoint.empty()) {
    load(job.checkpoint, engine.own());
  }
}

RunningEngine::~RunningEngine() {
  ranks_->end();  // because unfinished operations use the engine's memory
}

/// Draws first values by the index in the whole parameter, as for the states of a model.
void RunningEngine::set_first_values(const job::Job& job, const compile::Compiled& compiled,
                                     runtime::Executor& executor) {
  for (const EngineParameter& parameter : compiled.engine->own()) {
    const graph::StateId id = compiled.graph.find_state(parameter.name);
    if (!id.exists()) {
      continue;
    }
    graph::State whole = compiled.graph.states[id];
    whole.type.shape = parameter.whole;
    whole.initializer = {
        .kind = parameter.is_normal ? graph::Initializer::Kind::normal : graph::Initializer::Kind::constant,
        .value = parameter.initial};
    runtime::initialize(executor.state(id), {.origin = parameter.origin, .shape = parameter.shape}, whole, job.seed,
                        executor.threads());
  }
}

/// If the engine refuses the tensors, the message names the first one that has another shape than it declares.
void RunningEngine::load(const std::filesystem::path& checkpoint, const std::vector<EngineParameter>& own) {
  const checkpoint::SafetensorsFile file(checkpoint);
  std::vector<std::vector<float>> values;
  std::vector<plugins::NamedArray> tensors;
  for (const checkpoint::Tensor& tensor : file.tensors()) {
    if (tensor.info.dtype != checkpoint::DType::f32) {
      throw Error(ErrorCode::data, fmt::format("'{}': tensor {} is {}, and an engine loads F32", file.path().string(),
                                               tensor.info.name, checkpoint::to_string(tensor.info.dtype)));
    }
    std::vector<float>& of_tensor = values.emplace_back(tensor.bytes.size() / sizeof(float));
    file.read(tensor, 0, std::as_writable_bytes(std::span(of_tensor)));
    tensors.push_back({tensor.info.name, {.shape = tensor.info.shape, .address = of_tensor.data()}});
  }
  file.require_unchanged();
  try {
    instance_->load_checkpoint(tensors);
  } catch (const Error& error) {
    for (const EngineParameter& parameter : own) {
      const auto found = std::ranges::find(tensors, parameter.name, &plugins::NamedArray::name);
      if (found != tensors.end() && found->array.shape != parameter.whole) {
        throw Error(error.code(),
                    fmt::format("{}; '{}' has {} [{}], and the engine declares it as [{}]", error.message(),
                                file.path().string(), parameter.name, fmt::join(found->array.shape, ", "),
                                fmt::join(parameter.whole, ", ")),
                    error.awaited());
      }
    }
    throw;
  }
}

plugins::NamedArray array_in_arena(const EngineParameter& parameter, const std::string& prefix,
                                   const graph::Graph& graph, const runtime::Executor& executor) {
  plugins::NamedArray named{parameter.name, {.shape = parameter.shape}};
  if (const graph::StateId id = graph.find_state(prefix + parameter.name); id.exists()) {
    named.array.address = executor.state(id).data;
  }
  return named;
}

}  // namespace shardrun::train
