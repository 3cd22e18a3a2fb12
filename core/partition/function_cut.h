#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "core/graph/graph.h"
#include "core/partition/deadlock.h"
#include "core/partition/split_function.h"
#include "core/partition/stages.h"

namespace shardrun::partition {

/// A function whose nodes have stages.
struct CutFunction {
  SplitFunction split;
  IdVector<graph::ValueId, std::set<StageId>> readers;              ///< stages other than the value's own that need it
  IdVector<graph::ValueId, std::vector<graph::StateWrite>> writes;  ///< the value's writes to states
};

/// Nodes that one stage executes in order.
struct SegmentNodes {
  std::vector<graph::NodeId> all;
  std::vector<graph::NodeId> meeting;  ///< those with inputs from, results for, or collectives with other stages
};

/// One action of a stage, or all of its part of a function.
struct Segment {
  std::size_t call = 0;
  const SegmentNodes* nodes = nullptr;
  std::optional<plan::Action> action = std::nullopt;
};

/// One function, or all of its calls in a step, cut for all stages.
struct FunctionCut {
  bool repeated = false;
  mesh::AxisId axis = {};  ///< the pipeline's mesh axis
  std::deque<CutFunction> functions;
  std::deque<SegmentNodes> nodes;
  std::vector<const CutFunction*> calls;                  ///< the function of each call
  IdVector<StageId, std::vector<Segment>> segments;       ///< per stage, in execution order
  IdVector<StageId, std::vector<StageMessage>> messages;  ///< per stage, in execution order
  std::vector<std::int64_t> call_rows = {};               ///< per call, if repeated
  std::vector<Tie> ties = {};                             ///< of all stages
  std::size_t under_way = 1;                              ///< the most messages in flight along a link, in host memory
};

/// Finds the values that one stage makes and another needs. REQUIRES: every node has a stage.
[[nodiscard]] CutFunction cut_function(SplitFunction split, const StateStages& states, IdRange<StageId> stages);

/// The link by which stage `from` sends the results of `producer` to stage `to`.
[[nodiscard]] Link link_of(const graph::Node& producer, StageId from, StageId to) noexcept;

/// Whether a stage has to receive this value from another stage.
[[nodiscard]] bool is_foreign(const SplitFunction& function, graph::ValueId value, StageId stage);

/// Whether a node is a collective of all stages. `axis`: the pipeline's. REQUIRES: messages are not nodes yet.
[[nodiscard]] bool is_meeting(const SplitNode& node, mesh::AxisId axis) noexcept;

/// The nodes among `all` that take part in messages and collectives of a stage with others.
[[nodiscard]] std::vector<graph::NodeId> meeting_of(const CutFunction& function, const std::vector<graph::NodeId>& all,
                                                    StageId stage, mesh::AxisId axis);

/// Fills in cut.messages. A send stands right behind the node that makes the value. A receive stands before the first
/// node that needs the value, behind the receives of everything sent earlier along its link.
void order_messages(FunctionCut& cut, const graph::Graph& graph, const StateStages& states);

/// One stage's part of the function, with its messages. REQUIRES: `messages` equal cut.messages, except that they may
/// have places, and outlive the call.
[[nodiscard]] SplitFunction build_stage(const FunctionCut& cut, const graph::Graph& graph, const StateStages& states,
                                        StageId stage, const std::vector<StageMessage>& messages);

}  // namespace shardrun::partition
