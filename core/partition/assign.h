#pragma once

#include "core/partition/pipeline.h"
#include "core/partition/split_function.h"
#include "core/partition/stages.h"

namespace shardrun::partition {

// Each node of a function gets the stage that does it.

/// By the layers that the nodes belong to.
[[nodiscard]] SplitFunction assign_by_layers(SplitFunction function, const Pipeline& pipeline);

/// By the states that the nodes read, as an update does. A sum over tensors of several stages becomes one over what
/// each stage has, and an all_reduce. Throws Error{job} for any other op over tensors of several stages.
[[nodiscard]] SplitFunction assign_by_states(SplitFunction function, const Pipeline& pipeline,
                                             const StateStages& states);

}  // namespace shardrun::partition
