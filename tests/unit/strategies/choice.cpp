#include "tests/unit/strategies/choice.h"

#include <map>

#include "core/compile/describe.h"
#include "core/options/convert.h"

namespace shardrun::test {

void add_schedule(OptionValues& options, const std::string& schedule) {
  const std::size_t blank = schedule.find(' ');
  options.set("schedule", schedule.substr(0, blank));
  if (blank != std::string::npos) {
    options.set("chunks", std::int64_t{std::stoll(schedule.substr(blank + 1))});
  }
}

const std::vector<std::string>& all_schedules() {
  static const std::vector<std::string> schedules = {"gpipe", "1f1b", "interleaved 2", "interleaved 3", "zb-h1"};
  return schedules;
}

std::string to_string(const Choice& choice) {
  std::string text = choice.strategy;
  for (const plan::MeshAxis& axis : choice.mesh) {
    text += " " + axis.name + (axis.name.empty() ? "" : "=") + std::to_string(axis.size);
  }
  for (const auto& [name, value] : choice.options.entries()) {
    text += ", " + name + " = " + to_text({.name = name}, value);
  }
  for (const std::int64_t rank : choice.order) {
    text += " " + std::to_string(rank);
  }
  return text;
}

Answer answer_by(const ModelCase& model, const Choice& choice) {
  static std::map<std::string, plugins::Strategy> opened;
  auto strategy = opened.find(choice.strategy);
  if (strategy == opened.end()) {
    strategy = opened
                   .emplace(choice.strategy,
                            plugins::Strategy::open({SHARDRUN_PLUGINS, SHARDRUN_HOOKED_PLUGINS}, choice.strategy))
                   .first;
  }
  plugins::StrategyRequest request = compile::describe(model.graph, model.microbatch_rows);
  for (const plan::MeshAxis& axis : choice.mesh) {
    request.job.ranks *= axis.size;
    if (!axis.name.empty()) {
      request.job.mesh.push_back({axis.name, axis.size});
    }
  }
  request.options = choice.options;
  plan::Plan plan = strategy->second.make_plan(request);
  plan.order = choice.order;
  std::shared_ptr<const plugins::Hooks> hooks = strategy->second.hooks(request, plan);
  return {.plan = std::move(plan), .hooks = std::move(hooks)};
}

partition::Partition split_by(const ModelCase& model, const Choice& choice) {
  return partition::split(model.graph, answer_by(model, choice).plan, model.microbatch_rows);
}

partition::Programs programs_by(const ModelCase& model, const partition::Partition& partition, std::int64_t rank) {
  return partition::programs_of(model.graph, partition, {.device = device::Device::find("cpu"), .rank = rank});
}

}  // namespace shardrun::test
