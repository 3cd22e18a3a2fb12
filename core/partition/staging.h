#pragma once

#include "core/partition/program.h"

namespace shardrun::partition {

/// Adds buffers in staging memory for a program's hook calls and for transfers that are not direct, and gives them
/// offsets. Transports and hooks use these instead of device memory that the host cannot address. Regions of a transfer
/// that overlap also overlap in staging memory. Addresses keep their remainder modulo memory::alignment. REQUIRES: the
/// arena's buffers have offsets. Returns the bytes of staging memory that are needed.
[[nodiscard]] std::uint64_t add_staging(Program& program);

/// Bytes that the host needs for the larger of: a call's inputs, all outputs of a program, one metric.
[[nodiscard]] std::uint64_t host_room(const Programs& programs, const graph::Graph& graph);

}  // namespace shardrun::partition
