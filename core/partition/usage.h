#pragma once

#include <cstdint>
#include <vector>

#include "core/graph/graph.h"
#include "core/partition/schedule.h"
#include "core/partition/split_function.h"

namespace shardrun::partition {

/// The first and the last step of something.
struct Span {
  StepId begin = {};
  StepId end = {};
};

/// The steps of a function in which values are made and read and states are written; the same on all ranks of a stage.
/// The number of steps stands for the function's end.
struct Usage {
  IdVector<graph::NodeId, Span> spans;
  IdVector<graph::ValueId, StepId> last_use;                 ///< none: it is not read
  IdVector<graph::ValueId, const graph::StateWrite*> fused;  ///< the state write that its op makes itself, or null
  IdVector<graph::ValueId, StepId> copied_at;                ///< the step of the last copy of it to a state
  IdVector<StepId, std::vector<const graph::StateWrite*>> copies_after;  ///< the copies to states made after a step
  IdVector<graph::StateId, StepId> complete_at;                          ///< the step of the last write to it
  IdVector<graph::StateId, int> writes_to;                               ///< the number of writes to it
};

/// Decides when state writes are made.
///  - A sum is added as soon as its value is made, earlier writes to the state are made, and nothing reads the old
///    contents any more.
///  - An assignment is made by its op if possible, otherwise at the function's end.
/// REQUIRES: `function` outlives the result.
[[nodiscard]] Usage usage_of(const graph::Graph& graph, const SplitFunction& function,
                             const IdVector<StepId, Step>& steps);

}  // namespace shardrun::partition
