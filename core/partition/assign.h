#pragma once

#include <cstdint>
#include <vector>

#include "core/graph/graph.h"
#include "core/partition/pipeline.h"
#include "core/partition/sharded.h"
#include "core/partition/stages.h"

namespace shardrun::partition {

/// On which stage each node of a function is done.
struct AssignedFunction {
  ShardedFunction function;
  std::vector<std::int32_t> node_stages;  ///< −1: on every stage
  /// Of each node that sums over tensors of several stages, the stage that counts each operand; of others nothing.
  std::vector<std::vector<std::int32_t>> operand_stages;

  [[nodiscard]] std::int32_t stage_of(graph::ValueId value) const;  ///< that makes it; −1: every one has it
};

/// By the layers that the nodes belong to.
[[nodiscard]] AssignedFunction assign_by_layers(const ShardedFunction& function, const Pipeline& pipeline);

/// By the states that the nodes read, as an update does. A sum over tensors of several stages becomes one over what
/// each stage has, and an all_reduce. Throws Error{job} for any other op over tensors of several stages.
[[nodiscard]] AssignedFunction assign_by_states(const ShardedFunction& function, const Pipeline& pipeline,
                                                const StateStages& states);

}  // namespace shardrun::partition
