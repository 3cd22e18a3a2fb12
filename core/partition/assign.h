#pragma once

#include "core/partition/pipeline.h"
#include "core/partition/split_function.h"
#include "core/partition/stages.h"

namespace shardrun::partition {

// These functions assign a pipeline stage to each node of a function.

/// The stage of a node is the stage of its layer.
[[nodiscard]] SplitFunction assign_by_layers(SplitFunction function, const Pipeline& pipeline);

/// For an update: the stage of a node is the stage that updates the states it reads, and every stage if it reads only
/// metrics. A sum over tensors of several stages becomes a sum on each stage, followed by an all_reduce. Throws
/// Error{job} for any other op over tensors of several stages.
[[nodiscard]] SplitFunction assign_by_states(SplitFunction function, const Pipeline& pipeline,
                                             const StateStages& states);

}  // namespace shardrun::partition
