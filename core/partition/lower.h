#pragma once

#include "core/device/device.h"
#include "core/graph/graph.h"
#include "core/partition/program.h"

namespace shardrun::partition {

/// The function's instructions over buffers without offsets yet. `states` become the first buffers.
/// State writes are fused into the instruction that makes the value where its op can add to, or overwrite, the state's
/// buffer and nothing reads the old contents later; otherwise they are copies.
[[nodiscard]] Program lower(const graph::Graph& graph, const graph::Function& function,
                            const std::vector<Buffer>& states, const device::Device& device, int threads);

}  // namespace shardrun::partition
