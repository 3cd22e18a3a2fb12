#pragma once

#include <cstdint>
#include <vector>

#include "core/graph/graph.h"
#include "core/partition/schedule.h"
#include "core/partition/split_function.h"

namespace shardrun::partition {

/// The first and the last step in which something happens.
struct Span {
  StepId begin = {};
  StepId end = {};
};

/// The steps of a function in which values are made and read, and states are written; the same on all ranks of a stage.
/// The number of steps stands for the end of the function.
struct Usage {
  IdVector<graph::NodeId, Span> spans;
  IdVector<graph::ValueId, StepId> last_use;                 ///< per value; none: it is not read
  IdVector<graph::ValueId, const graph::StateWrite*> fused;  ///< per value: the write that its op makes, or null
  IdVector<graph::ValueId, StepId> copied_at;                ///< per value: the step of its last copy to a state
  IdVector<StepId, std::vector<const graph::StateWrite*>> copies_after;  ///< per step: copies to states after it
  IdVector<graph::StateId, StepId> complete_at;                          ///< per state: the step of the last write
  IdVector<graph::StateId, int> writes_to;                               ///< per state: the number of writes
};

/// Decides when state writes are made.
///  - A contribution is added once its value exists, earlier writes to the state are made, and no later step reads the
///    old contents.
///  - An assignment is made by its op if possible, otherwise at the function's end.
/// REQUIRES: `function` outlives the result.
[[nodiscard]] Usage usage_of(const graph::Graph& graph, const SplitFunction& function,
                             const IdVector<StepId, Step>& steps);

}  // namespace shardrun::partition
