#pragma once

#include "core/graph/builder.h"

namespace shardrun::models {

/// Cross-entropy of each row: logits [..., vocab], targets i32 [...] → [...].
[[nodiscard]] graph::ValueId cross_entropy(graph::FunctionBuilder& builder, graph::ValueId logits,
                                           graph::ValueId targets);

}  // namespace shardrun::models
