#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <utility>

#include "core/base/error.h"
#include "core/partition/function_cut.h"

namespace shardrun::partition {
namespace {

using graph::Node;
using graph::NodeId;
using graph::StateId;
using graph::StateWrite;
using graph::ValueId;

/// A value of one call.
using CallValue = std::pair<std::int32_t, ValueId>;

/// The values sent along each link, in order.
using Sent = std::map<Link, std::vector<CallValue>>;

/// Visits the values that a stage sends for a node.
template <typename Visit>
void for_each_sent(const CutFunction& function, NodeId n, std::int32_t stage, const Visit& visit) {
  const Node& node = function.split.nodes[index(n)];
  for (const ValueId id : node.outputs) {
    for (const std::int32_t reader : function.readers[index(id)]) {
      visit(link_of(node, stage, reader), id);
    }
  }
}

/// Orders one stage's messages. Visits only the nodes that messages depend on.
class Ordering {
 public:
  Ordering(const FunctionCut& cut, const graph::Graph& graph, const StateStages& states, std::int32_t stage,
           const Sent& sent)
      : cut_(cut), graph_(graph), states_(states), stage_(stage) {
    for (const auto& [link, values] : sent) {
      if (link.to == stage) {
        arriving_[link].assign(values.begin(), values.end());
      }
    }
  }

  std::vector<StageMessage> run() {
    const std::vector<Segment>& segments = cut_.segments[index(stage_)];
    for (; segment_ < segments.size(); ++segment_) {
      const Segment& segment = segments[segment_];
      for (const NodeId n : segment.nodes->meeting) {
        visit(segment.call, n);
      }
    }
    segment_ = segments.size() - 1;
    finish(segments.front());
    return std::move(messages_);
  }

 private:
  [[nodiscard]] const SplitFunction& function(std::int32_t call) const { return cut_.calls[index(call)]->split; }

  void visit(std::int32_t call, NodeId n) {
    const SplitNode& node = function(call).nodes[index(n)];
    for (std::size_t i = 0; i < node.inputs.size(); ++i) {
      if (node.operand_stages.empty() || node.operand_stages[i] == stage_) {
        need(call, node.inputs[i]);
      }
    }
    for_each_sent(*cut_.calls[index(call)], n, stage_, [&](const Link& link, ValueId id) {
      messages_.push_back({.link = link, .sends = true, .call = call, .value = id, .segment = segment_});
    });
  }

  /// Receives a value, after everything that was sent before it along its link.
  void need(std::int32_t call, ValueId id) {
    if (!is_foreign(function(call), id, stage_) || had_.contains({call, id})) {
      return;
    }
    const SplitFunction& from = function(call);
    const Link link = link_of(from.nodes[index(from.values[index(id)].producer)], from.stage_of(id), stage_);
    std::deque<CallValue>& arriving = arriving_[link];
    while (!arriving.empty()) {
      const CallValue next = arriving.front();
      arriving.pop_front();
      had_.insert(next);
      messages_.push_back(
          {.link = link, .sends = false, .call = next.first, .value = next.second, .segment = segment_});
      if (next == CallValue{call, id}) {
        return;
      }
    }
    throw Error(ErrorCode::internal, fmt::format("{}: stage {} of {} does not send it to stage {}",
                                                 from.values[index(id)].name, link.from, from.name, stage_));
  }

  /// Receives what states and outputs need at the end, in the same order as build_stage().
  void finish(const Segment& first) {
    const SplitFunction& from = function(first.call);
    std::set<StateId> written = written_by_nodes();
    for (const StateWrite& write : from.writes) {
      const bool assigned = write.mode == StateWrite::Mode::assign;
      if (written.contains(write.state)) {
        continue;
      }
      if (states_.holds(index(write.state), stage_) && assigned) {
        need(first.call, write.value);
        written.insert(write.state);
      } else if (graph_.states[index(write.state)].kind == graph::StateKind::metric) {
        had_.insert({first.call, write.value});
        written.insert(write.state);
      }
    }
    for (const graph::Port& port : from.outputs) {
      need(first.call, port.value);
    }
  }

  [[nodiscard]] std::set<StateId> written_by_nodes() const {
    std::set<StateId> written;
    std::set<const SegmentNodes*> seen;
    for (const Segment& segment : cut_.segments[index(stage_)]) {
      if (!seen.insert(segment.nodes).second) {
        continue;
      }
      const CutFunction& function = *cut_.calls[index(segment.call)];
      for (const NodeId n : segment.nodes->all) {
        for (const ValueId id : function.split.nodes[index(n)].outputs) {
          for (const StateWrite& write : function.writes[index(id)]) {
            if (states_.holds(index(write.state), stage_)) {
              written.insert(write.state);
            }
          }
        }
      }
    }
    return written;
  }

  const FunctionCut& cut_;
  const graph::Graph& graph_;
  const StateStages& states_;
  const std::int32_t stage_;
  std::map<Link, std::deque<CallValue>> arriving_;
  std::set<CallValue> had_;  ///< values of other stages that were received already
  std::size_t segment_ = 0;
  std::vector<StageMessage> messages_;
};

}  // namespace

CutFunction cut_function(SplitFunction split, const StateStages& states, std::int32_t stages) {
  CutFunction cut{.split = std::move(split), .readers = {}, .writes = {}};
  const SplitFunction& function = cut.split;
  cut.writes.resize(function.values.size());
  for (const StateWrite& write : function.writes) {
    cut.writes[index(write.value)].push_back(write);
  }
  cut.readers.resize(function.values.size());
  const auto read_on = [&](ValueId id, std::int32_t stage) {
    if (is_foreign(function, id, stage)) {
      cut.readers[index(id)].insert(stage);
    }
  };
  const auto read_on_all = [&](ValueId id) {
    for (std::int32_t stage = 0; stage < stages; ++stage) {
      read_on(id, stage);
    }
  };
  for (const SplitNode& node : function.nodes) {
    for (const ValueId id : node.inputs) {
      if (node.operand_stages.empty() && node.stage >= 0) {
        read_on(id, node.stage);
      } else if (node.operand_stages.empty()) {
        read_on_all(id);
      }
    }
  }
  for (const StateWrite& write : function.writes) {
    for (std::int32_t stage = 0; stage < stages && write.mode == StateWrite::Mode::assign; ++stage) {
      if (states.holds(index(write.state), stage)) {
        read_on(write.value, stage);
      }
    }
  }
  for (const graph::Port& port : function.outputs) {
    read_on_all(port.value);
  }
  return cut;
}

Link link_of(const Node& producer, std::int32_t from, std::int32_t to) noexcept {
  const bool backward =
      producer.phase == graph::Phase::backward_input || producer.phase == graph::Phase::backward_weight;
  return {from, to, backward};
}

bool is_foreign(const SplitFunction& function, ValueId value, std::int32_t stage) {
  const std::int32_t made = function.stage_of(value);
  return made >= 0 && made != stage;
}

std::vector<NodeId> meeting_of(const CutFunction& function, const std::vector<NodeId>& all, std::int32_t stage) {
  std::vector<NodeId> meeting;
  for (const NodeId n : all) {
    const Node& node = function.split.nodes[index(n)];
    if (std::any_of(node.inputs.begin(), node.inputs.end(),
                    [&](ValueId id) { return is_foreign(function.split, id, stage); }) ||
        std::any_of(node.outputs.begin(), node.outputs.end(),
                    [&](ValueId id) { return !function.readers[index(id)].empty(); })) {
      meeting.push_back(n);
    }
  }
  return meeting;
}

void order_messages(FunctionCut& cut, const graph::Graph& graph, const StateStages& states) {
  Sent sent;
  const auto stages = static_cast<std::int32_t>(cut.segments.size());
  for (std::int32_t stage = 0; stage < stages; ++stage) {
    for (const Segment& segment : cut.segments[index(stage)]) {
      for (const NodeId n : segment.nodes->meeting) {
        for_each_sent(*cut.calls[index(segment.call)], n, stage,
                      [&](const Link& link, ValueId id) { sent[link].emplace_back(segment.call, id); });
      }
    }
  }
  for (std::int32_t stage = 0; stage < stages; ++stage) {
    cut.messages.push_back(Ordering(cut, graph, states, stage, sent).run());
  }
}

}  // namespace shardrun::partition
