#pragma once

#include "core/partition/program.h"

namespace shardrun::partition {

/// Gives the hook calls of a program, and the transfers that are not direct, buffers in staging memory, and all buffers
/// there their offsets. Transports and hooks use these in place of the device's memory, which the host cannot address.
/// Regions of a transfer that share memory share it there too, and every address keeps its remainder modulo
/// memory::alignment. REQUIRES: the arena's buffers have their offsets. Returns the bytes that are needed.
[[nodiscard]] std::uint64_t add_staging(Program& program);

/// The room that the host needs for a call's inputs at once, or all outputs of a program, or one metric.
[[nodiscard]] std::uint64_t host_room(const Programs& programs, const graph::Graph& graph);

}  // namespace shardrun::partition
