#include "core/forecast/timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>

#include "core/partition/deadlock.h"

namespace shardrun::forecast {
namespace {

using partition::StageId;
using plan::Action;

class Simulation {
 public:
  Simulation(const partition::Pipeline& pipeline, const ActionCost& cost)
      : pipeline_(pipeline), cost_(cost), free_(pipeline.actions.size(), 0) {
    timeline_.stages.resize(pipeline.actions.size());
  }

  Timeline run() {
    partition::walk(pipeline_.actions, [&](StageId stage, const Action& action) { return advance(stage, action); });
    return std::move(timeline_);
  }

 private:
  /// The time at which the inputs from other actions exist; nothing if it is not known yet.
  [[nodiscard]] std::optional<double> ready(const Action& action) const {
    switch (action.kind) {
      case Action::Kind::forward:
        return action.chunk == 0 ? 0 : done(Action::Kind::forward, action.chunk - 1, action.microbatch);
      case Action::Kind::backward:
      case Action::Kind::backward_input:
        return action.chunk + 1 == pipeline_.chunks.size()
                   ? done(Action::Kind::forward, action.chunk, action.microbatch)
                   : done(Action::Kind::backward_input, action.chunk + 1, action.microbatch);
      case Action::Kind::backward_weight: return done(Action::Kind::backward_input, action.chunk, action.microbatch);
    }
    return std::nullopt;
  }

  [[nodiscard]] std::optional<double> done(Action::Kind kind, std::uint32_t chunk, std::uint32_t microbatch) const {
    const auto found = done_.find({kind, chunk, microbatch});
    return found == done_.end() ? std::nullopt : std::optional(found->second);
  }

  bool advance(StageId stage, const Action& action) {
    const std::optional<double> when = ready(action);
    if (!when) {
      return false;
    }
    const double begin = std::max(free_[stage], *when);
    const double end = begin + cost_(action);
    const Action::Kind kind = action.kind == Action::Kind::backward ? Action::Kind::backward_input : action.kind;
    done_[{kind, action.chunk, action.microbatch}] = end;
    timeline_.stages[stage].push_back({action, begin, end});
    timeline_.end = std::max(timeline_.end, end);
    free_[stage] = end;
    return true;
  }

  const partition::Pipeline& pipeline_;
  const ActionCost& cost_;
  Timeline timeline_;
  IdVector<StageId, double> free_;
  std::map<std::tuple<Action::Kind, std::uint32_t, std::uint32_t>, double> done_;
};

double busy_time(const std::vector<TimedAction>& actions) noexcept {
  double busy = 0;
  for (const TimedAction& action : actions) {
    busy += action.end - action.begin;
  }
  return busy;
}

}  // namespace

double Timeline::bubble(partition::StageId stage) const noexcept {
  const double busy = busy_time(stages[stage]);
  return busy > 0 ? (end - busy) / busy : 0;
}

double Timeline::working() const noexcept {
  double busy = 0;
  for (const std::vector<TimedAction>& actions : stages) {
    busy += busy_time(actions);
  }
  return end > 0 ? busy / (end * static_cast<double>(stages.size())) : 0;
}

std::optional<MostWorking> most_working(const partition::Pipeline& pipeline) {
  const std::size_t stages = pipeline.stages();
  for (std::size_t c = 0; c < pipeline.chunks.size(); ++c) {
    if (pipeline.chunks[c].stage != c % stages) {
      return std::nullopt;
    }
  }
  if (pipeline.chunks.size() % stages != 0) {
    return std::nullopt;
  }
  const std::vector<Action>& actions = pipeline.actions.front();
  const std::size_t chunks = pipeline.chunks.size() / stages;
  const auto count = [&](Action::Kind kind) {
    return static_cast<std::size_t>(std::ranges::count(actions, kind, &Action::kind));
  };
  const bool in_parts = count(Action::Kind::backward) == 0;
  const std::string work = fmt::format("{}{}m", in_parts ? "3 " : "", chunks > 1 ? "v " : "");
  const auto units = static_cast<double>(count(Action::Kind::forward) * (in_parts ? 3 : 1));
  std::string source = in_parts ? "arXiv:2401.10241, section 2.3" : "arXiv:2104.04473, section 2.2";
  if (!in_parts && chunks == 1 && count(Action::Kind::forward) >= stages) {
    const auto all_busy = static_cast<double>(count(Action::Kind::forward) - stages + 1);
    source += fmt::format("; (m - s + 1) / m, the share of microbatches with which all stages are busy: {:.4g} %",
                          100 * all_busy / static_cast<double>(count(Action::Kind::forward)));
  }
  return MostWorking{
      .share = units / (units + static_cast<double>(stages - 1)),
      .formula = fmt::format("{} / ({} + s - 1), m = {}, s = {}{}", work, work, count(Action::Kind::forward) / chunks,
                             stages, chunks > 1 ? fmt::format(", v = {}", chunks) : ""),
      .source = std::move(source)};
}

double unit_cost(const Action& action) noexcept { return action.kind == Action::Kind::backward ? 2 : 1; }

Timeline timeline_of(const partition::Pipeline& pipeline, const ActionCost& cost) {
  return Simulation(pipeline, cost).run();
}

int most_live_forwards(const std::vector<Action>& actions) {
  int live = 0;
  int most = 0;
  for (const Action& action : actions) {
    live += action.kind == Action::Kind::forward ? 1 : 0;
    most = std::max(most, live);
    live -= action.kind == Action::Kind::backward || action.kind == Action::Kind::backward_weight ? 1 : 0;
  }
  return most;
}

}  // namespace shardrun::forecast
