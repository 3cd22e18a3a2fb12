#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "core/graph/graph.h"
#include "core/partition/pipeline.h"
#include "core/partition/sharded.h"

namespace shardrun::partition {

/// Which stages of a pipeline have a state, and which of them updates it; of one stage where there is no pipeline.
struct StateStages {
  std::vector<std::vector<bool>> held;  ///< of each state, by stage
  std::vector<std::int32_t> owner;      ///< of each state

  [[nodiscard]] bool holds(std::size_t state, std::int32_t stage) const {
    return held[state][static_cast<std::size_t>(stage)];
  }
};

struct FunctionCut;

/// A graph's functions cut into what each stage of a pipeline does in which order.
struct Stages {
  StateStages states;
  std::vector<std::shared_ptr<const FunctionCut>> cuts;  ///< of each function; none where there is no pipeline

  /// The functions of one stage. They are made when they are asked for: those that do all microbatches of a step at
  /// once are long. REQUIRES: there is a pipeline; `graph` is the one that was cut.
  [[nodiscard]] std::vector<ShardedFunction> functions_of(const graph::Graph& graph, std::int32_t stage) const;

  /// Along which a stage sends something to another, ascending.
  [[nodiscard]] std::vector<Link> links() const;
};

/// Cuts sharded functions at the borders of stages. The repeated functions become one that goes through a stage's
/// actions, for all microbatches; the others keep their order. What is made on one stage and needed on another is sent
/// and received; a sum over tensors of several stages is summed up on each, then over all.
/// Throws Error{job} where the actions wait for each other, naming them.
[[nodiscard]] Stages cut_stages(const graph::Graph& graph, const ShardedGraph& sharded, const Pipeline& pipeline,
                                const std::vector<std::int64_t>& microbatch_rows);

}  // namespace shardrun::partition
