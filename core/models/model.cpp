#include "core/models/model.h"

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

graph::StateId parameter(graph::Graph& graph, std::string name, std::vector<std::int64_t> shape,
                         std::vector<std::string> axes, graph::Initializer initializer, bool decay,
                         std::int32_t layer) {
  graph.states.push_back({.name = std::move(name),
                          .type = {.dtype = graph::DType::f32, .shape = std::move(shape), .axes = std::move(axes)},
                          .kind = graph::StateKind::parameter,
                          .initializer = initializer,
                          .decay = decay,
                          .layer = layer});
  graph::require_countable(graph.states.back().type, graph.states.back().name);
  return static_cast<graph::StateId>(graph.states.size()) - 1;
}

}  // namespace shardrun::models
