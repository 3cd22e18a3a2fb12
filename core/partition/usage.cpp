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
  Reckoning(const graph::Graph& graph, const SplitFunction& function, const std::vector<Step>& steps)
      : graph_(graph), function_(function), steps_(steps), end_(static_cast<std::int32_t>(steps.size())) {
    made_.fused.assign(function_.values.size(), nullptr);
    made_.copied_at.assign(function_.values.size(), -1);
  }

  Usage run() {
    find_spans();
    count_uses();
    index_states();
    schedule_writes();
    return std::move(made_);
  }

 private:
  [[nodiscard]] const Value& value(ValueId id) const { return function_.values[index(id)]; }

  void find_spans() {
    made_.spans.resize(function_.nodes.size());
    for (std::int32_t s = 0; s < end_; ++s) {
      const Step& step = steps_[index(s)];
      for (const graph::NodeId n : step.nodes) {
        Span& span = made_.spans[index(n)];
        span.begin = step.kind == Step::Kind::wait ? span.begin : s;
        span.end = s;
      }
    }
  }

  /// The last and the first step of the node that makes a value; −1 if the value comes from outside the function.
  [[nodiscard]] std::int32_t made_at(ValueId id) const {
    return value(id).producer < 0 ? -1 : made_.spans[index(value(id).producer)].end;
  }
  [[nodiscard]] std::int32_t begun_at(ValueId id) const {
    return value(id).producer < 0 ? -1 : made_.spans[index(value(id).producer)].begin;
  }

  /// Fills in made_.last_use: the last step that reads a value; end_ if the function's end reads it.
  void count_uses() {
    made_.last_use.assign(function_.values.size(), -1);
    uses_.assign(function_.values.size(), 0);
    for (std::size_t n = 0; n < function_.nodes.size(); ++n) {
      for (const ValueId id : function_.nodes[n].inputs) {
        made_.last_use[index(id)] = std::max(made_.last_use[index(id)], made_.spans[n].end);
        ++uses_[index(id)];
      }
    }
    for (const graph::Port& port : function_.outputs) {
      made_.last_use[index(port.value)] = end_;
      ++uses_[index(port.value)];
    }
    for (const StateWrite& write : function_.writes) {
      if (value(write.value).producer < 0) {
        made_.last_use[index(write.value)] = end_;
      }
      ++uses_[index(write.value)];
    }
  }

  [[nodiscard]] int result_index(ValueId id) const {
    const std::vector<ValueId>& outputs = function_.nodes[index(value(id).producer)].outputs;
    return static_cast<int>(std::find(outputs.begin(), outputs.end(), id) - outputs.begin());
  }

  /// The value that reads a state's old contents, if the function has one.
  [[nodiscard]] ValueId reader_of(graph::StateId state) const { return reader_of_[index(state)]; }

  /// Fills in reader_of_ and made_.writes_to.
  void index_states() {
    reader_of_.assign(graph_.states.size(), graph::no_value);
    for (std::size_t v = function_.values.size(); v-- > 0;) {
      if (function_.values[v].state >= 0) {
        reader_of_[index(function_.values[v].state)] = static_cast<ValueId>(v);
      }
    }
    made_.writes_to.assign(graph_.states.size(), 0);
    for (const StateWrite& write : function_.writes) {
      ++made_.writes_to[index(write.state)];
    }
  }

  /// Decides when each write is made: see usage_of().
  void schedule_writes() {
    made_.complete_at.assign(graph_.states.size(), -1);
    made_.copies_after.resize(index(end_) + 1);
    for (const StateWrite& write : function_.writes) {
      const std::int32_t made = made_at(write.value);
      const ValueId old = reader_of(write.state);
      std::int32_t at = std::max(made, made_.complete_at[index(write.state)]);
      if (old != graph::no_value) {
        at = std::max(at, made_.last_use[index(old)]);
      }
      if (at == made && can_fuse(write)) {
        made_.fused[index(write.value)] = &write;
      } else {
        at = write.mode == StateWrite::Mode::assign || made < 0 ? end_ : at;
        made_.copied_at[index(write.value)] = std::max(made_.copied_at[index(write.value)], at);
        made_.copies_after[index(at)].push_back(&write);
      }
      made_.complete_at[index(write.state)] = at;
    }
    for (const Tie& tie : function_.ties) {
      made_.complete_at[index(tie.state)] = end_;
    }
  }

  [[nodiscard]] bool can_fuse(const StateWrite& write) const {
    const std::int32_t producer = value(write.value).producer;
    if (producer < 0 || made_.fused[index(write.value)] != nullptr) {
      return false;
    }
    const Node& node = function_.nodes[index(producer)];
    const ValueId old = reader_of(write.state);
    const int result = result_index(write.value);
    if (write.mode != StateWrite::Mode::assign) {
      return node.op->accumulates && result == 0 && uses_[index(write.value)] == 1 && old == graph::no_value;
    }
    if (made_.writes_to[index(write.state)] > 1) {
      return false;
    }
    if (old == graph::no_value || made_.last_use[index(old)] < begun_at(write.value)) {
      return true;
    }
    return made_.last_use[index(old)] == begun_at(write.value) && updates_in_place(node, result, old);
  }

  /// Whether the node may overwrite `old` with its result: every operand that is `old` must be declared in place with
  /// that result.
  [[nodiscard]] static bool updates_in_place(const Node& node, int result, ValueId old) {
    for (std::size_t i = 0; i < node.inputs.size(); ++i) {
      const std::pair<int, int> pair = {result, static_cast<int>(i)};
      const auto& pairs = node.op->in_place;
      if (node.inputs[i] == old && std::find(pairs.begin(), pairs.end(), pair) == pairs.end()) {
        return false;
      }
    }
    return true;
  }

  const graph::Graph& graph_;
  const SplitFunction& function_;
  const std::vector<Step>& steps_;
  const std::int32_t end_;
  std::vector<int> uses_;           ///< per value
  std::vector<ValueId> reader_of_;  ///< per state: the value that reads its old contents, or none
  Usage made_;
};

}  // namespace

Usage usage_of(const graph::Graph& graph, const SplitFunction& function, const std::vector<Step>& steps) {
  return Reckoning(graph, function, steps).run();
}

}  // namespace shardrun::partition
