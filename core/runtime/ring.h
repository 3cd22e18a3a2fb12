#pragma once

#include <cstddef>
#include <cstdint>

#include "core/partition/program.h"
#include "core/runtime/communicator.h"

namespace shardrun::runtime {

/// Bytes that one member of a group passes on in all steps of a collective: round the ring to its neighbour, or, of an
/// all_to_all, to each member its own. Counted step by step from the memory that a communicator is given: what a run
/// says that it sent, beside what partition::sent_bytes plans.
/// Throws Error{internal} where the transfer's blocks do not fill that memory.
[[nodiscard]] std::uint64_t ring_bytes(const partition::Transfer& transfer, const Communicator::Place& place,
                                       std::size_t member, std::size_t members);

}  // namespace shardrun::runtime
