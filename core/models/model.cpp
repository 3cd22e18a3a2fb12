#include "core/models/model.h"

#include <fmt/format.h>

#include <map>
#include <utility>

namespace shardrun::models {
namespace {

std::map<std::string, Model, std::less<>>& registry() {
  static std::map<std::string, Model, std::less<>> models;
  return models;
}

}  // namespace

RegisterModel::RegisterModel(Model model) {
  std::string name = model.name;
  registry().emplace(std::move(name), std::move(model));
}

const Model* find_model(std::string_view name) noexcept {
  const auto found = registry().find(name);
  return found == registry().end() ? nullptr : &found->second;
}

std::vector<std::string> model_names() {
  std::vector<std::string> names;
  for (const auto& [name, model] : registry()) {
    names.push_back(name);
  }
  return names;
}

void refuse(const ModelSettings& settings, std::string_view section, std::string_view key, std::string_view why) {
  const job::Job* const job = settings.job;
  if (job == nullptr) {
    throw Refusal(ErrorCode::job, std::string(why));
  }
  const std::string where = job->is_given(section, key) ? job->where(section, key) : job->where(section, "");
  throw Refusal(ErrorCode::job, fmt::format("{}: {}", where, why));
}

void refuse_without_data(const ModelSettings& settings, std::string_view key) {
  refuse(settings, "data", "",
         fmt::format("[data] is missing: set text, tokens or arrays; [model] {} is enough for a plan", key));
}

graph::StateId parameter(graph::Graph& graph, std::string name, std::vector<std::int64_t> shape,
                         std::vector<std::string> axes, graph::Initializer initializer, bool decay,
                         std::int32_t layer) {
  graph::State state{.name = std::move(name),
                     .type = {.dtype = graph::DType::f32, .shape = std::move(shape), .axes = std::move(axes)},
                     .kind = graph::StateKind::parameter,
                     .initializer = initializer,
                     .decay = decay,
                     .layer = layer};
  graph::require_countable(state.type, state.name);
  return graph.states.push_back(std::move(state));
}

}  // namespace shardrun::models
