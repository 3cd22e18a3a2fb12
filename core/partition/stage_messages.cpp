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

/// A call's number and a value of its function.
using CallValue = std::pair<std::size_t, ValueId>;

/// The values sent along each link, in order.
using Sent = std::map<Link, std::vector<CallValue>>;

/// Visits the results of a node that the stage sends to other stages.
template <typename Visit>
void for_each_sent(const CutFunction& function, NodeId n, StageId stage, const Visit& visit) {
  const Node& node = function.split.nodes[n];
  for (const ValueId id : node.outputs) {
    for (const StageId reader : function.readers[id]) {
      visit(link_of(node, stage, reader), id);
    }
  }
}

/// Orders one stage's messages. Visits only the nodes that messages depend on.
class Ordering {
 public:
  Ordering(const FunctionCut& cut, const graph::Graph& graph, const StateStages& states, StageId stage,
           const Sent& sent)
      : cut_(cut), graph_(graph), states_(states), stage_(stage) {
    for (const auto& [link, values] : sent) {
      if (link.to == stage) {
        arriving_[link].assign(values.begin(), values.end());
      }
    }
  }

  std::vector<StageMessage> run() {
    const std::vector<Segment>& segments = cut_.segments[stage_];
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
  [[nodiscard]] const SplitFunction& function(std::size_t call) const { return cut_.calls[call]->split; }

  void visit(std::size_t call, NodeId n) {
    const SplitNode& node = function(call).nodes[n];
    for (std::size_t i = 0; i < node.inputs.size(); ++i) {
      if (node.operand_stages.empty() || node.operand_stages[i] == stage_) {
        need(call, node.inputs[i]);
      }
    }
    if (is_meeting(node, cut_.axis)) {
      messages_.push_back(
          {.kind = StageMessage::Kind::meet, .call = call, .value = node.outputs[0], .segment = segment_});
    }
    for_each_sent(*cut_.calls[call], n, stage_, [&](const Link& link, ValueId id) {
      messages_.push_back(
          {.kind = StageMessage::Kind::send, .link = link, .call = call, .value = id, .segment = segment_});
    });
  }

  /// Adds the receive of another stage's value, after the receives of everything that was sent earlier along its link.
  void need(std::size_t call, ValueId id) {
    if (!is_foreign(function(call), id, stage_) || had_.contains({call, id})) {
      return;
    }
    const SplitFunction& from = function(call);
    const Link link = link_of(from.nodes[from.values[id].producer], from.stage_of(id), stage_);
    std::deque<CallValue>& arriving = arriving_[link];
    while (!arriving.empty()) {
      const CallValue next = arriving.front();
      arriving.pop_front();
      had_.insert(next);
      messages_.push_back({.kind = StageMessage::Kind::receive,
                           .link = link,
                           .call = next.first,
                           .value = next.second,
                           .segment = segment_});
      if (next == CallValue{call, id}) {
        return;
      }
    }
    throw Error(ErrorCode::internal, fmt::format("{}: stage {} of {} does not send it to stage {}",
                                                 from.values[id].name, link.from.number(), from.name, stage_.number()));
  }

  /// Adds the receives of values that states and outputs need at the end, in the order of build_stage().
  void finish(const Segment& first) {
    const SplitFunction& from = function(first.call);
    std::set<StateId> written = written_by_nodes();
    for (const StateWrite& write : from.writes) {
      const bool assigned = write.mode == StateWrite::Mode::assign;
      if (written.contains(write.state)) {
        continue;
      }
      if (states_.holds(write.state, stage_) && assigned) {
        need(first.call, write.value);
        written.insert(write.state);
      } else if (graph_.states[write.state].kind == graph::StateKind::metric) {
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
    for (const Segment& segment : cut_.segments[stage_]) {
      if (!seen.insert(segment.nodes).second) {
        continue;
      }
      const CutFunction& function = *cut_.calls[segment.call];
      for (const NodeId n : segment.nodes->all) {
        for (const ValueId id : function.split.nodes[n].outputs) {
          for (const StateWrite& write : function.writes[id]) {
            if (states_.holds(write.state, stage_)) {
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
  const StageId stage_;
  std::map<Link, std::deque<CallValue>> arriving_;
  std::set<CallValue> had_;  ///< values of other stages that were received
  std::size_t segment_ = 0;
  std::vector<StageMessage> messages_;
};

}  // namespace

CutFunction cut_function(SplitFunction split, const StateStages& states, IdRange<StageId> stages) {
  CutFunction cut{.split = std::move(split), .readers = {}, .writes = {}};
  const SplitFunction& function = cut.split;
  cut.writes.resize(function.values.size());
  for (const StateWrite& write : function.writes) {
    cut.writes[write.value].push_back(write);
  }
  cut.readers.resize(function.values.size());
  const auto read_on = [&](ValueId id, StageId stage) {
    if (is_foreign(function, id, stage)) {
      cut.readers[id].insert(stage);
    }
  };
  const auto read_on_all = [&](ValueId id) {
    for (const StageId stage : stages) {
      read_on(id, stage);
    }
  };
  for (const SplitNode& node : function.nodes) {
    for (const ValueId id : node.inputs) {
      if (node.operand_stages.empty() && node.stage.exists()) {
        read_on(id, node.stage);
      } else if (node.operand_stages.empty()) {
        read_on_all(id);
      }
    }
  }
  for (const StateWrite& write : function.writes) {
    for (const StageId stage : stages) {
      if (write.mode == StateWrite::Mode::assign && states.holds(write.state, stage)) {
        read_on(write.value, stage);
      }
    }
  }
  for (const graph::Port& port : function.outputs) {
    read_on_all(port.value);
  }
  return cut;
}

Link link_of(const Node& producer, StageId from, StageId to) noexcept {
  const bool backward =
      producer.phase == graph::Phase::backward_input || producer.phase == graph::Phase::backward_weight;
  return {from, to, backward};
}

bool is_foreign(const SplitFunction& function, ValueId value, StageId stage) {
  const StageId made = function.stage_of(value);
  return made.exists() && made != stage;
}

bool is_meeting(const SplitNode& node, mesh::AxisId axis) noexcept {
  return node.transition && node.transition->axis == axis;
}

std::vector<NodeId> meeting_of(const CutFunction& function, const std::vector<NodeId>& all, StageId stage,
                               mesh::AxisId axis) {
  std::vector<NodeId> meeting;
  for (const NodeId n : all) {
    const SplitNode& node = function.split.nodes[n];
    if (is_meeting(node, axis) ||
        std::any_of(node.inputs.begin(), node.inputs.end(),
                    [&](ValueId id) { return is_foreign(function.split, id, stage); }) ||
        std::any_of(node.outputs.begin(), node.outputs.end(),
                    [&](ValueId id) { return !function.readers[id].empty(); })) {
      meeting.push_back(n);
    }
  }
  return meeting;
}

void order_messages(FunctionCut& cut, const graph::Graph& graph, const StateStages& states) {
  Sent sent;
  for (const StageId stage : cut.segments.ids()) {
    for (const Segment& segment : cut.segments[stage]) {
      for (const NodeId n : segment.nodes->meeting) {
        for_each_sent(*cut.calls[segment.call], n, stage,
                      [&](const Link& link, ValueId id) { sent[link].emplace_back(segment.call, id); });
      }
    }
  }
  for (const StageId stage : cut.segments.ids()) {
    cut.messages.push_back(Ordering(cut, graph, states, stage, sent).run());
  }
}

}  // namespace shardrun::partition
