#include "core/partition/usage.h"

#include <algorithm>
#include <utility>

namespace shardrun::partition {
namespace {

using graph::Node;
using graph::StateWrite;
using graph::Value;
using graph::ValueId;

class Reckoning {
 public:
  Reckoning(const graph::Graph& graph, const SplitFunction& function, const IdVector<StepId, Step>& steps)
      : graph_(graph), function_(function), steps_(steps), end_(steps.next()) {
    made_.fused.assign(function_.values.size(), nullptr);
    made_.copied_at.assign(function_.values.size(), {});
  }

  Usage run() {
    find_spans();
    count_uses();
    index_states();
    schedule_writes();
    return std::move(made_);
  }

 private:
  [[nodiscard]] const Value& value(ValueId id) const { return function_.values[id]; }

  void find_spans() {
    made_.spans.resize(function_.nodes.size());
    for (const StepId s : steps_.ids()) {
      const Step& step = steps_[s];
      for (const graph::NodeId n : step.nodes) {
        Span& span = made_.spans[n];
        span.begin = step.kind == Step::Kind::wait ? span.begin : s;
        span.end = s;
      }
    }
  }

  /// The last and the first step of the node that makes a value; none if the value comes from outside of the function.
  [[nodiscard]] StepId made_at(ValueId id) const {
    return value(id).producer.exists() ? made_.spans[value(id).producer].end : StepId{};
  }
  [[nodiscard]] StepId begun_at(ValueId id) const {
    return value(id).producer.exists() ? made_.spans[value(id).producer].begin : StepId{};
  }

  /// Fills in made_.last_use: the last step that reads a value; end_ if the function's end reads it.
  void count_uses() {
    made_.last_use.assign(function_.values.size(), {});
    uses_.assign(function_.values.size(), 0);
    for (const graph::NodeId n : function_.nodes.ids()) {
      for (const ValueId id : function_.nodes[n].inputs) {
        made_.last_use[id] = std::max(made_.last_use[id], made_.spans[n].end);
        ++uses_[id];
      }
    }
    for (const graph::Port& port : function_.outputs) {
      made_.last_use[port.value] = end_;
      ++uses_[port.value];
    }
    for (const StateWrite& write : function_.writes) {
      if (!value(write.value).producer.exists()) {
        made_.last_use[write.value] = end_;
      }
      ++uses_[write.value];
    }
  }

  [[nodiscard]] std::size_t result_index(ValueId id) const {
    const std::vector<ValueId>& outputs = function_.nodes[value(id).producer].outputs;
    return static_cast<std::size_t>(std::find(outputs.begin(), outputs.end(), id) - outputs.begin());
  }

  /// The value by which the function reads the state's old contents; none if it does not.
  [[nodiscard]] ValueId reader_of(graph::StateId state) const { return reader_of_[state]; }

  /// Fills in reader_of_ and made_.writes_to.
  void index_states() {
    reader_of_.assign(graph_.states.size(), {});
    for (const ValueId id : function_.values.ids()) {
      const graph::StateId state = value(id).state;
      if (state.exists() && !reader_of_[state].exists()) {
        reader_of_[state] = id;
      }
    }
    made_.writes_to.assign(graph_.states.size(), 0);
    for (const StateWrite& write : function_.writes) {
      ++made_.writes_to[write.state];
    }
  }

  /// Decides when each write is made: see usage_of().
  void schedule_writes() {
    made_.complete_at.assign(graph_.states.size(), {});
    made_.copies_after.resize(end_.index() + 1);
    for (const StateWrite& write : function_.writes) {
      const StepId made = made_at(write.value);
      const ValueId old = reader_of(write.state);
      StepId at = std::max(made, made_.complete_at[write.state]);
      if (old.exists()) {
        at = std::max(at, made_.last_use[old]);
      }
      if (at == made && can_fuse(write)) {
        made_.fused[write.value] = &write;
      } else {
        at = write.mode == StateWrite::Mode::assign || !made.exists() ? end_ : at;
        made_.copied_at[write.value] = std::max(made_.copied_at[write.value], at);
        made_.copies_after[at].push_back(&write);
      }
      made_.complete_at[write.state] = at;
    }
    for (const Tie& tie : function_.ties) {
      made_.complete_at[tie.state] = end_;
    }
  }

  [[nodiscard]] bool can_fuse(const StateWrite& write) const {
    const graph::NodeId producer = value(write.value).producer;
    if (!producer.exists() || made_.fused[write.value] != nullptr) {
      return false;
    }
    const Node& node = function_.nodes[producer];
    const ValueId old = reader_of(write.state);
    const std::size_t result = result_index(write.value);
    if (write.mode != StateWrite::Mode::assign) {
      return node.op->accumulates && result == 0 && uses_[write.value] == 1 && !old.exists();
    }
    if (made_.writes_to[write.state] > 1) {
      return false;
    }
    if (!old.exists() || made_.last_use[old] < begun_at(write.value)) {
      return true;
    }
    return made_.last_use[old] == begun_at(write.value) && updates_in_place(node, result, old);
  }

  /// Whether the node may overwrite the value `old` with its result: the op must declare every operand that is `old` to
  /// be in place with that result.
  [[nodiscard]] static bool updates_in_place(const Node& node, std::size_t result, ValueId old) {
    for (std::size_t i = 0; i < node.inputs.size(); ++i) {
      const std::pair pair = {result, i};
      const auto& pairs = node.op->in_place;
      if (node.inputs[i] == old && std::find(pairs.begin(), pairs.end(), pair) == pairs.end()) {
        return false;
      }
    }
    return true;
  }

  const graph::Graph& graph_;
  const SplitFunction& function_;
  const IdVector<StepId, Step>& steps_;
  const StepId end_;
  IdVector<ValueId, int> uses_;
  IdVector<graph::StateId, ValueId> reader_of_;  ///< per state: the value that reads its old contents, or none
  Usage made_;
};

}  // namespace

Usage usage_of(const graph::Graph& graph, const SplitFunction& function, const IdVector<StepId, Step>& steps) {
  return Reckoning(graph, function, steps).run();
}

}  // namespace shardrun::partition
