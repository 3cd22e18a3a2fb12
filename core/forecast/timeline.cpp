#include "core/forecast/timeline.h"

#include <algorithm>
#include <map>
#include <optional>
#include <tuple>

#include "core/partition/walk.h"

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
  /// When the action's inputs from other actions are there; nothing if not known yet.
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

}  // namespace

double Timeline::bubble(partition::StageId stage) const noexcept {
  double busy = 0;
  for (const TimedAction& action : stages[stage]) {
    busy += action.end - action.begin;
  }
  return busy > 0 ? (end - busy) / busy : 0;
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
