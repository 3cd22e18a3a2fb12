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
  std::vector<std::set<std::int32_t>> readers;         ///< of each value the stages that need it and do not make it
  std::vector<std::vector<graph::StateWrite>> writes;  ///< of each value the states that are written from it
};

/// Nodes that one stage does one after the other.
struct SegmentNodes {
  std::vector<graph::NodeId> all;
  std::vector<graph::NodeId> meeting;  ///< of these, those that other stages make something for or need something of
};

/// One action of a stage, or all that it does of a function.
struct Segment {
  std::int32_t call = 0;
  const SegmentNodes* nodes = nullptr;
  std::optional<plan::Action> action = std::nullopt;
};

/// One function as all stages do it, or all calls of it in a step.
struct FunctionCut {
  bool repeated = false;
  mesh::AxisId axis = -1;  ///< along which the stages are
  std::deque<CutFunction> functions;
  std::deque<SegmentNodes> nodes;
  std::vector<const CutFunction*> calls;            ///< the function of each call
  std::vector<std::vector<Segment>> segments;       ///< of each stage, in its order
  std::vector<std::vector<StageMessage>> messages;  ///< of each stage, in its order
  std::vector<std::int64_t> call_rows = {};         ///< of each call, where repeated
  std::vector<Tie> ties = {};                       ///< of all stages
  std::size_t under_way = 1;                        ///< what may be on its way along a link at one time
};

/// Finds which stages need what another makes. REQUIRES: the nodes have their stages.
[[nodiscard]] CutFunction cut_function(SplitFunction split, const StateStages& states, std::int32_t stages);

/// The link from a stage to a reader of what this node makes.
[[nodiscard]] Link link_of(const graph::Node& producer, std::int32_t from, std::int32_t to) noexcept;

/// Whether a stage has a value only if another has sent it.
[[nodiscard]] bool is_foreign(const SplitFunction& function, graph::ValueId value, std::int32_t stage);

/// The nodes among `all` that take part in messages of a stage.
[[nodiscard]] std::vector<graph::NodeId> meeting_of(const CutFunction& function, const std::vector<graph::NodeId>& all,
                                                    std::int32_t stage);

/// Finds `messages`: what is sent is sent behind the node that makes it; what is received is received before the first
/// node that needs it, behind all that was sent before it along its link.
void order_messages(FunctionCut& cut, const graph::Graph& graph, const StateStages& states);

/// What one stage does, with its messages. REQUIRES: they have been ordered.
[[nodiscard]] SplitFunction build_stage(const FunctionCut& cut, const graph::Graph& graph, const StateStages& states,
                                        std::int32_t stage);

}  // namespace shardrun::partition
