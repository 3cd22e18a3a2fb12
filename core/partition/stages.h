#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/graph/graph.h"
#include "core/partition/pipeline.h"
#include "core/partition/shard.h"

namespace shardrun::partition {

/// The stages that hold each state, and the stage that updates it. Without a pipeline there is one stage.
struct StateStages {
  IdVector<graph::StateId, IdVector<StageId, bool>> held;
  IdVector<graph::StateId, StageId> owner;  ///< the stage that updates each state

  [[nodiscard]] bool holds(graph::StateId state, StageId stage) const { return held[state][stage]; }
};

struct FunctionCut;

/// The memory that messages and sums between stages are moved in.
enum class MessageMemory : std::uint8_t {
  host,    ///< host memory or staging memory: the transport keeps a message until it is received
  device,  ///< device memory: its queue launches transfers in one order of all stages (launch_order.h)
};

/// A graph's functions cut into the stages' parts, in execution order.
struct Stages {
  StateStages states;
  std::vector<std::shared_ptr<const FunctionCut>> cuts;  ///< per function; empty without a pipeline

  /// The functions of one stage. Each call makes them anew, because functions that execute all microbatches of a step
  /// are long. Throws Error{job} for MessageMemory::device if the stages would wait for each other at sums. REQUIRES:
  /// there is a pipeline; `graph` is the one that was cut.
  [[nodiscard]] std::vector<SplitFunction> functions_of(const graph::Graph& graph, StageId stage,
                                                        MessageMemory memory) const;

  /// Whether stages sum anything together in a function.
  [[nodiscard]] bool have_sums() const;

  /// The links along which any message is sent, ascending.
  [[nodiscard]] std::vector<Link> links() const;
};

/// Cuts sharded functions into the parts of the stages.
///  - The repeated functions become one function for all microbatches, which runs through a stage's actions. The other
///    functions keep their order.
///  - A value that one stage makes and another needs is sent and received.
///  - A sum over tensors of several stages is first summed on each stage, then over all stages.
/// Throws Error{job} if the actions wait for each other; the message names them.
[[nodiscard]] Stages cut_stages(const graph::Graph& graph, const ShardedGraph& sharded, const Pipeline& pipeline,
                                const std::vector<std::int64_t>& microbatch_rows);

}  // namespace shardrun::partition
