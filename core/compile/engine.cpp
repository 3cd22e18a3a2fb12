#include "core/compile/engine.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <shardrun/engine.h>

#include <algorithm>
#include <cstdlib>
#include <map>
#include <tuple>
#include <utility>

#include "core/base/error.h"
#include "core/base/human.h"
#include "core/checkpoint/saved_state.h"
#include "core/compile/plugins.h"
#include "core/mesh/placement.h"
#include "plugins/loader/call.h"

namespace shardrun::compile {
namespace {

using plugins::EngineParameter;

bool is_same_part(const EngineParameter& a, const EngineParameter& b) {
  return a.name == b.name && a.origin == b.origin && a.shape == b.shape;
}

std::int64_t elements_of(const std::vector<std::int64_t>& shape) { return graph::element_count(shape); }

bool overlap(const EngineParameter& a, const EngineParameter& b) {
  for (std::size_t d = 0; d < a.whole.size(); ++d) {
    if (a.origin[d] + a.shape[d] <= b.origin[d] || b.origin[d] + b.shape[d] <= a.origin[d]) {
      return false;
    }
  }
  return true;
}

std::string text_of(const EngineParameter& parameter) {
  return fmt::format("'{}' [{}] at [{}] of [{}]", parameter.name, fmt::join(parameter.shape, ", "),
                     fmt::join(parameter.origin, ", "), fmt::join(parameter.whole, ", "));
}

/// A part of a parameter, and the first rank that declares it.
struct Held {
  const EngineParameter* part;
  std::size_t rank;
};

/// Adds a rank's part to the known parts of its parameter, unless it is empty or an equal part is known.
void add_part(std::vector<Held>& parts, const EngineParameter& part, std::size_t rank, const std::string& engine) {
  for (const Held& other : parts) {
    if (other.part->whole != part.whole) {
      throw Error(ErrorCode::plugin,
                  fmt::format("engine '{}': rank {} declares {}, and rank {} {}: the whole has to be "
                              "the same on all ranks",
                              engine, rank, text_of(part), other.rank, text_of(*other.part)));
    }
    if (std::tie(other.part->decay, other.part->is_normal, other.part->initial) !=
        std::tie(part.decay, part.is_normal, part.initial)) {
      throw Error(ErrorCode::plugin,
                  fmt::format("engine '{}': ranks {} and {} declare '{}' with different first values or weight decay",
                              engine, other.rank, rank, part.name));
    }
    if (is_same_part(*other.part, part)) {
      return;
    }
    if (elements_of(part.shape) > 0 && elements_of(other.part->shape) > 0 && overlap(*other.part, part)) {
      throw Error(ErrorCode::plugin, fmt::format("engine '{}': rank {} declares {}, and rank {} {}: parts are equal or "
                                                 "do not overlap",
                                                 engine, rank, text_of(part), other.rank, text_of(*other.part)));
    }
  }
  if (elements_of(part.shape) > 0 || parts.empty()) {
    parts.push_back({&part, rank});
  }
}

/// Whether the targets are labels. If so, the loss is cross-entropy. Throws Error{job} if data and loss do not fit.
bool checked_labels(const job::Job& job, const JobEngine& engine) {
  const bool has_labels = engine.data.vocab > 0;
  const job::Loss loss = job.train.loss;
  if (loss != job::Loss::automatic && (loss == job::Loss::cross_entropy) != has_labels) {
    throw Error(ErrorCode::job,
                fmt::format("{}: [train] loss = {} needs {}, and the second of [data] arrays holds {}",
                            job.where("train", "loss"),
                            has_labels ? loss == job::Loss::mse ? "mse" : "squared_error" : "cross_entropy",
                            has_labels ? "real-valued targets" : "integer labels",
                            has_labels ? "integer labels" : "real numbers"));
  }
  return has_labels;
}

/// For each parameter, by name, one of its parts, from which the whole shape is known.
std::map<std::string, const EngineParameter*> wholes_of(const JobEngine& engine) {
  std::map<std::string, const EngineParameter*> wholes;
  for (const std::vector<EngineParameter>& of_rank : engine.parameters) {
    for (const EngineParameter& parameter : of_rank) {
      wholes.emplace(parameter.name, &parameter);
    }
  }
  return wholes;
}

/// The place of a setting such as "job.ranks" in the job file, or else of its section. If the engine names no setting,
/// the place that names the engine.
std::string place_at_fault(const job::Job& job, const std::string& setting) {
  const std::size_t dot = std::min(setting.find('.'), setting.size());
  const std::string section = setting.substr(0, dot);
  const std::string key = setting.substr(std::min(dot + 1, setting.size()));
  return job.is_given(section, key)                      ? job.where(section, key)
         : job.is_given(section, "") && section != "job" ? job.where(section, "")
                                                         : job.where("job", "engine");
}

graph::State state_of(const EngineParameter& parameter) {
  graph::State state{
      .name = parameter.name, .type = {graph::DType::f32, parameter.shape, {}}, .decay = parameter.decay};
  for (std::size_t d = 0; d < parameter.shape.size(); ++d) {
    state.type.axes.push_back(fmt::format("dim{}", d));
  }
  return state;
}

}  // namespace

std::vector<std::uint32_t> JobEngine::holders_of(const EngineParameter& parameter) const {
  std::vector<std::uint32_t> ranks;
  for (std::size_t rank = 0; rank < parameters.size(); ++rank) {
    if (std::ranges::any_of(parameters[rank],
                            [&](const EngineParameter& each) { return is_same_part(each, parameter); })) {
      ranks.push_back(static_cast<std::uint32_t>(rank));
    }
  }
  return ranks;
}

std::pair<std::int64_t, std::int64_t> JobEngine::rows_of(std::int64_t rows) const {
  if (plugin.takes_whole_batch()) {
    return {0, rows};
  }
  const mesh::Interval part = mesh::part_of({0, rows}, request.world_size, request.rank);
  return {part.begin, part.size()};
}

plugins::ArrayView JobEngine::samples(std::int64_t rows) const {
  plugins::ArrayView array = sample;
  array.shape.insert(array.shape.begin(), rows);
  return array;
}

void require_model(const job::Job& job, std::string_view what) {
  if (!job.engine.name.empty()) {
    throw Error(ErrorCode::job,
                fmt::format("{}: [job] engine = {}: there is no {} of an engine, whose ranks run code of "
                            "their own",
                            job.where("job", "engine"), job.engine.name, what));
  }
}

void require_steps(const job::Job& job, std::string_view what) {
  if (job::applies_model(job)) {
    throw Error(ErrorCode::job,
                fmt::format("{}: [job] task = infer applies a model: there is no {} of that; name a job that "
                            "trains or iterates",
                            job.where("job", "task"), what));
  }
}

JobEngine open_engine(const job::Job& job, std::int64_t rank, const workload::DataShape& data) {
  if (job.task == job::Task::train && data.features == 0) {
    throw Error(ErrorCode::job,
                fmt::format("{}: an engine is trained on arrays: set [data] arrays", job.where("data", "")));
  }
  JobEngine engine{.plugin = plugins::Engine::open(directories_of(job.plugins.path), job.engine.name),
                   .request = {.options = job.engine.options,
                               .task = job.task == job::Task::infer     ? SR_ENGINE_INFER
                                       : job.task == job::Task::iterate ? SR_ENGINE_ITERATE
                                                                        : SR_ENGINE_TRAIN,
                               .rank = static_cast<std::uint32_t>(rank),
                               .world_size = static_cast<std::uint32_t>(job.ranks),
                               .features = data.features,
                               .outputs = data.outputs > 0 ? data.outputs : data.vocab},
                   .data = data,
                   .parameters = {}};
  if (job.task == job::Task::iterate && !engine.plugin.iterates()) {
    throw Error(ErrorCode::job,
                fmt::format("{}: [job] task = iterate: engine '{}' has no steps: take one that iterates, or "
                            "train it or infer with it",
                            job.where("job", "task"), job.engine.name));
  }
  if (job.task != job::Task::iterate && !engine.plugin.predicts()) {
    throw Error(
        ErrorCode::job,
        fmt::format("{}: engine '{}' iterates alone, and is neither trained nor predicts: set [job] task = iterate",
                    job.where("job", "engine"), job.engine.name));
  }
  if (job.task == job::Task::train && !engine.plugin.trains()) {
    throw Error(ErrorCode::job, fmt::format("{}: engine '{}' infers alone, and is not trained: set [job] task = infer",
                                            job.where("job", "engine"), job.engine.name));
  }
  plugins::EngineRequest request = engine.request;
  for (request.rank = 0; request.rank < request.world_size; ++request.rank) {
    try {
      plugins::EngineDeclaration declared = engine.plugin.declare(request);
      engine.parameters.push_back(std::move(declared.parameters));
      plugins::ArrayView sample = sample_of(job, engine.plugin, declared.sample, request.features);
      if (request.rank > 0 && (sample.element != engine.sample.element || sample.shape != engine.sample.shape)) {
        throw Error(ErrorCode::plugin, fmt::format("engine '{}': ranks 0 and {} declare different samples",
                                                   job.engine.name, request.rank));
      }
      engine.sample = std::move(sample);
    } catch (const plugins::Invalid& invalid) {
      throw Error(ErrorCode::job, fmt::format("{}: {}", place_at_fault(job, invalid.setting()), invalid.message()));
    } catch (const Error& error) {
      if (job.task != job::Task::infer || (request.features > 0 && request.outputs > 0)) {
        throw;
      }
      throw Error(ErrorCode::job,
                  fmt::format("{}: the engine is not told how many values samples and predictions have: set [infer] "
                              "features and outputs, or a [job] checkpoint of a run that knew them. {}",
                              job.where("infer", "features"), error.message()));
    }
  }
  require_whole_parameters(engine);
  return engine;
}

plugins::ArrayView sample_of(const job::Job& job, const plugins::Engine& engine,
                             const std::optional<plugins::ArrayView>& said, std::int64_t features) {
  if (!said) {
    return {.shape = {features > 0 ? features : -1}};
  }
  const std::string sample = fmt::format("{} [{}]", to_string(said->dtype()), fmt::join(said->shape, ", "));
  const bool is_known = std::ranges::find(said->shape, -1) == said->shape.end();
  if (job.task == job::Task::train && (said->element != SR_ELEMENT_F32 || !is_known)) {
    throw Error(ErrorCode::job,
                fmt::format("{}: engine '{}' takes samples {}, and is trained on f32 samples of a known size: it can "
                            "only infer ([job] task = infer)",
                            job.where("job", "engine"), engine.manifest().name, sample));
  }
  if (is_known && features > 0 && said->elements() != features) {
    throw Error(ErrorCode::job,
                fmt::format("{}: engine '{}' takes samples {}, and those of the data or checkpoint have "
                            "{}: change its options, or give it other samples",
                            job.where("job", "engine"), engine.manifest().name, sample, counted(features, "value")));
  }
  return *said;
}

workload::EngineProgram parameters_of(const JobEngine& engine) {
  workload::EngineProgram program{.name = engine.plugin.manifest().name};
  for (const EngineParameter& parameter : engine.own()) {
    if (elements_of(parameter.shape) > 0) {
      graph::State state = state_of(parameter);
      state.kind = engine.request.task == SR_ENGINE_ITERATE ? graph::StateKind::field : graph::StateKind::parameter;
      program.parameters.push_back({std::move(state), engine.holders_of(parameter).front() == engine.request.rank});
    }
  }
  return program;
}

workload::EngineProgram program_of(const job::Job& job, const JobEngine& engine, workload::OptimizerSettings optimizer,
                                   std::int64_t eval_rows, std::int64_t eval_samples) {
  workload::EngineProgram program = parameters_of(engine);
  program.labels = checked_labels(job, engine);
  program.outputs = engine.request.outputs;
  if (!program.labels && job.train.loss != job::Loss::squared_error) {
    // The mean is also over the values of a sample.
    program.loss_scale = 2.0 / static_cast<double>(program.outputs);
  }
  program.batch = job.data.batch;
  program.eval_samples = eval_samples;
  program.optimizer = optimizer;
  const auto own_rows = [&](const std::vector<std::int64_t>& calls) {
    std::vector<std::int64_t> own;
    for (const std::int64_t rows : calls) {
      if (const std::int64_t count = engine.rows_of(rows).second; count > 0) {
        own.push_back(count);
      }
    }
    return own;
  };
  program.microbatch_rows = own_rows(workload::microbatch_rows(job.data.batch, job.data.microbatches));
  if (eval_samples > 0) {
    program.evaluation_rows = own_rows(workload::evaluation_rows(eval_samples, eval_rows));
  }
  return program;
}

void require_whole_parameters(const JobEngine& engine) {
  const std::string& name = engine.plugin.manifest().name;
  std::map<std::string, std::vector<Held>> all;
  for (std::size_t rank = 0; rank < engine.parameters.size(); ++rank) {
    for (const EngineParameter& part : engine.parameters[rank]) {
      add_part(all[part.name], part, rank, name);
    }
  }
  if (all.empty()) {
    throw Error(ErrorCode::plugin, fmt::format("engine '{}' declares no parameter on any rank", name));
  }
  for (const auto& [parameter, parts] : all) {
    std::int64_t held = 0;
    for (const Held& part : parts) {
      held += elements_of(part.part->shape);
    }
    if (const std::int64_t whole = elements_of(parts.front().part->whole); held != whole) {
      throw Error(ErrorCode::plugin,
                  fmt::format("engine '{}': the ranks' parts of '{}' have {} of its {} elements: each "
                              "element is held by a rank",
                              name, parameter, held, whole));
    }
  }
}

void require_parameters_of(const graph::Graph& graph, const JobEngine& engine, const std::string& where) {
  const auto refuse = [&](const std::string& name, const std::string& why) {
    throw Error(ErrorCode::job,
                fmt::format("{}: the model {} and the engine {} are to have the same parameters: '{}' {}", where,
                            graph.model, engine.plugin.manifest().name, name, why));
  };
  std::map<std::string, const EngineParameter*> wholes = wholes_of(engine);
  for (const graph::State& state : graph.states) {
    if (state.kind != graph::StateKind::parameter) {
      continue;
    }
    const auto found = wholes.find(state.name);
    if (found == wholes.end()) {
      refuse(state.name, "is the model's alone");
    }
    if (found->second->whole != state.type.shape) {
      refuse(state.name, fmt::format("is [{}] in the model and [{}] in the engine", fmt::join(state.type.shape, ", "),
                                     fmt::join(found->second->whole, ", ")));
    }
    if (found->second->decay != state.decay) {
      refuse(state.name, "has weight decay in one of them only");
    }
    wholes.erase(found);
  }
  if (!wholes.empty()) {
    refuse(wholes.begin()->first, "is the engine's alone");
  }
}

std::pair<mesh::Box, std::vector<std::int64_t>> place_of(const JobEngine& engine, const graph::Graph& graph,
                                                         graph::StateId state) {
  const graph::State& described = graph.states[state];
  const std::string& name =
      described.of_parameter.exists() ? graph.states[described.of_parameter].name : described.name;
  const auto found = std::ranges::find(engine.own(), name, &EngineParameter::name);
  if (found == engine.own().end()) {
    return {{.origin = {}, .shape = {}}, {}};  // a metric, which belongs to no parameter
  }
  return {{.origin = found->origin, .shape = found->shape}, found->whole};
}

checkpoint::StateFile engine_file(std::filesystem::path path, const JobEngine& engine, std::int64_t steps) {
  std::vector<checkpoint::TensorInfo> tensors;
  for (const auto& [name, parameter] : wholes_of(engine)) {
    tensors.push_back({name, checkpoint::DType::f32, parameter->whole});
  }
  checkpoint::Metadata metadata = {{"format", "pt"}};
  if (engine.request.task == SR_ENGINE_ITERATE) {
    metadata = checkpoint::describe_state(steps);
  } else {
    metadata["shardrun.features"] = fmt::format("{}", engine.request.features);
    metadata["shardrun.outputs"] = fmt::format("{}", engine.request.outputs);
  }
  metadata["shardrun.engine"] = section_of(engine);
  return {.path = std::move(path), .states = {}, .layout = checkpoint::lay_out(std::move(tensors), metadata)};
}

std::string section_of(const JobEngine& engine) {
  return fmt::format("[job]\nengine = {}\n[engine]\n{}", engine.plugin.manifest().name,
                     shardrun::to_string(engine.request.options));
}

graph::Graph whole_states(const JobEngine& engine) {
  graph::Graph graph;
  graph.model = engine.plugin.manifest().name;
  for (const auto& [name, parameter] : wholes_of(engine)) {
    EngineParameter whole = *parameter;
    whole.shape = whole.whole;
    graph.states.push_back(state_of(whole));
    graph.states.back().kind = graph::StateKind::field;
  }
  return graph;
}

std::vector<checkpoint::HeldTensor> held_tensors(const JobEngine& engine, const graph::Graph& graph) {
  std::vector<checkpoint::HeldTensor> all;
  for (const auto& [name, whole] : wholes_of(engine)) {
    checkpoint::HeldTensor held{
        {{name, checkpoint::TensorRole::field, checkpoint::DType::f32, whole->whole, {}}, graph.find_state(name)}, {}};
    for (std::size_t rank = 0; rank < engine.parameters.size(); ++rank) {
      const auto own = std::ranges::find(engine.parameters[rank], name, &EngineParameter::name);
      if (own == engine.parameters[rank].end() || elements_of(own->shape) == 0) {
        continue;
      }
      const std::vector<std::uint32_t> holders = engine.holders_of(*own);
      if (holders.front() == rank) {
        held.parts.push_back({{.origin = own->origin, .shape = own->shape}, {holders.begin(), holders.end()}});
      }
    }
    all.push_back(std::move(held));
  }
  return all;
}

std::vector<checkpoint::SavedPart> saved_parts(const JobEngine& engine, std::uint32_t rank, const graph::Graph& graph) {
  std::vector<checkpoint::SavedPart> parts;
  for (const EngineParameter& parameter : engine.parameters[rank]) {
    if (elements_of(parameter.shape) > 0 && engine.holders_of(parameter).front() == rank) {
      parts.push_back({.tensor = parameter.name,
                       .whole = parameter.whole,
                       .box = {.origin = parameter.origin, .shape = parameter.shape},
                       .state = graph.find_state(parameter.name)});
    }
  }
  return parts;
}

std::string to_string(const JobEngine& engine) {
  std::string text;
  for (std::size_t rank = 0; rank < engine.parameters.size(); ++rank) {
    for (const EngineParameter& parameter : engine.parameters[rank]) {
      text += fmt::format("{} {} {} {} {}\n", rank, text_of(parameter), parameter.decay, parameter.is_normal,
                          parameter.initial);
    }
  }
  return text;
}

}  // namespace shardrun::compile
