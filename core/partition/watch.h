#pragma once

#include "core/device/device.h"
#include "core/graph/graph.h"
#include "core/partition/program.h"

namespace shardrun::partition {

/// Divides the memory of states that last between steps (parameters, states of the optimizer and of hooks, fields) into
/// watched ranges, and adds to each program where they are verified and hashed: see Watched and Watch.
///  - The part of a state that a kernel overwrites in place is a range of its own if the kernel can hash: it then
///    verifies the old contents itself.
///  - The rest of a state is verified before the first instruction that may overwrite it, and hashed after the last.
///  - A state that no program writes is verified at the beginning of the function of role `once`.
/// REQUIRES: buffers have their offsets.
void watch_states(Programs& programs, const graph::Graph& graph, const device::Device& device);

}  // namespace shardrun::partition
