#pragma once

#include <cstdint>
#include <vector>

#include "core/device/device.h"
#include "core/graph/graph.h"
#include "core/memory/occupancy.h"
#include "core/partition/bucket.h"
#include "core/partition/partition.h"
#include "core/partition/program.h"
#include "core/partition/schedule.h"
#include "core/partition/split_function.h"

namespace shardrun::partition {

/// The inputs of lower(): the graph, its partition, this rank's states and buckets, and the rank's settings.
struct LowerSettings {
  const graph::Graph& graph;
  const RankSettings& rank;
  const Partition& partition;
  const IdVector<graph::StateId, Buffer>& states;  ///< the states become the first buffers
  const IdVector<graph::StateId, Buffer>& finalized;
  const IdVector<StepId, Step>& steps;
  const std::vector<Bucket>& buckets;  ///< the buckets to finalize; empty: sums stay partial
};

/// Lowers a function to the instructions of one rank. Buffers have no offsets yet.
///  - A state write becomes part of the instruction that makes the value, if the op can add to or overwrite the state's
///    buffer and no later instruction reads the old contents. Otherwise it becomes a copy.
///  - Buckets are finalized while other instructions compute. The program waits for them at its end.
[[nodiscard]] Program lower(const SplitFunction& function, const LowerSettings& settings);

/// The bytes of a buffer, or of a region of one, in the arena.
[[nodiscard]] inline memory::Range range_of(const Buffer& buffer) {
  return {buffer.offset, buffer.offset + buffer.bytes};
}

[[nodiscard]] inline memory::Range range_of(const Program& program, const Region& region, graph::DType dtype) {
  if (!region.buffer.exists()) {
    return {};
  }
  const std::uint64_t bytes = graph::element_bytes(dtype);
  const std::uint64_t begin = program.buffers[region.buffer].offset + static_cast<std::uint64_t>(region.first) * bytes;
  return {begin, begin + static_cast<std::uint64_t>(region.elements) * bytes};
}

/// Adds buffers in staging memory for a program's hook calls and for transfers that are not direct, and gives them
/// offsets. Transports and hooks use these instead of device memory that the host cannot address. Regions of a transfer
/// that overlap also overlap in staging memory. Addresses keep their remainder modulo memory::alignment. REQUIRES: the
/// arena's buffers have offsets. Returns the bytes of staging memory that are needed.
[[nodiscard]] std::uint64_t add_staging(Program& program);

/// The bytes of the largest of these: the inputs of one call, the outputs of a program, one metric.
[[nodiscard]] std::uint64_t host_room(const Programs& programs, const graph::Graph& graph);

/// Divides the memory of states that last between steps (parameters, states of the optimizer and of hooks, fields) into
/// watched ranges, and adds to each program where they are verified and hashed: see Watched and Watch.
///  - The part of a state that a kernel overwrites in place is a range of its own if the kernel can hash: it then
///    verifies the old contents itself.
///  - The rest of a state is verified before the first instruction that may overwrite it, and hashed after the last.
///  - A state that no program writes is verified at the beginning of the function of role `once`.
/// REQUIRES: buffers have their offsets.
void watch_states(Programs& programs, const graph::Graph& graph, const device::Device& device);

}  // namespace shardrun::partition
