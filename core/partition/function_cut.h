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

/// A function with a stage for each node, and the values that stages exchange.
struct CutFunction {
  SplitFunction split;
  IdVector<graph::ValueId, std::set<StageId>> readers;              ///< per value: the other stages that read it
  IdVector<graph::ValueId, std::vector<graph::StateWrite>> writes;  ///< per value: its writes to states
};

/// Nodes that one stage executes one after the other.
struct SegmentNodes {
  std::vector<graph::NodeId> all;
  /// Nodes with inputs from other stages, results for them, or collectives with them.
  std::vector<graph::NodeId> meeting;
};

/// The nodes of a function that a stage executes in one action or, without actions, all nodes that it executes.
struct Segment {
  std::size_t call = 0;
  const SegmentNodes* nodes = nullptr;
  std::optional<plan::Action> action = std::nullopt;
};

/// One function, cut for all stages. If it is called for each microbatch, all calls of a step are cut as one function.
struct FunctionCut {
  bool repeated = false;
  mesh::AxisId axis = {};  ///< the pipeline's mesh axis
  std::deque<CutFunction> functions;
  std::deque<SegmentNodes> nodes;
  std::vector<const CutFunction*> calls;                  ///< the function of each call
  IdVector<StageId, std::vector<Segment>> segments;       ///< per stage, in execution order
  IdVector<StageId, std::vector<StageMessage>> messages;  ///< per stage, in execution order
  std::vector<std::int64_t> call_rows = {};               ///< if repeated: the rows of each call
  std::vector<Tie> ties = {};  ///< of all stages: gradients to which stages other than their owner contribute
  std::size_t under_way = 1;   ///< most messages in flight per link, in host memory
};

/// Finds the values that one stage makes and another needs. REQUIRES: the nodes' stages are set.
[[nodiscard]] CutFunction cut_function(SplitFunction split, const StateStages& states, IdRange<StageId> stages);

/// The link by which stage `from` sends the results of `producer` to stage `to`.
[[nodiscard]] Link link_of(const graph::Node& producer, StageId from, StageId to) noexcept;

/// Whether a stage has to receive this value from another stage.
[[nodiscard]] bool is_foreign(const SplitFunction& function, graph::ValueId value, StageId stage);

/// Whether a node is a collective of all stages. `axis`: the pipeline's mesh axis. REQUIRES: the function has no
/// message nodes yet.
[[nodiscard]] bool is_meeting(const SplitNode& node, mesh::AxisId axis) noexcept;

/// The nodes among `all` by which a stage takes part in messages or in collectives of stages.
[[nodiscard]] std::vector<graph::NodeId> meeting_of(const CutFunction& function, const std::vector<graph::NodeId>& all,
                                                    StageId stage, mesh::AxisId axis);

/// Fills in cut.messages. A send comes right after the node that makes the value. A receive comes before the first node
/// that needs the value, and after the receives of everything that was sent earlier along its link.
void order_messages(FunctionCut& cut, const graph::Graph& graph, const StateStages& states);

/// One stage's part of the function, with its messages. `messages`: those of cut.messages, with StageMessage::place set
/// if they move device memory. REQUIRES: `messages` outlives the call.
[[nodiscard]] SplitFunction build_stage(const FunctionCut& cut, const graph::Graph& graph, const StateStages& states,
                                        StageId stage, const std::vector<StageMessage>& messages);

}  // namespace shardrun::partition
