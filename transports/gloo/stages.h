#pragma once

#include <shardrun/sdk/op.hpp>

#include <cstdint>
#include <memory>

#include "transports/gloo/calls.h"
#include "transports/gloo/lane.h"
#include "transports/gloo/letters.h"
#include "transports/gloo/mesh.h"

namespace shardrun::gloo_transport {

/// The letters of a group's collectives in stages. There is room for one from each member: it is made again when the
/// letter was read, so that a member that leaves after its last op leaves nothing unread behind that room.
struct StageBoxes {
  /// `chunk_bytes`: see `chunk`; the same on all members, and a multiple of every element's size.
  StageBoxes(Mesh& connections, std::uint64_t chunk_bytes);

  Mesh& mesh;
  std::uint64_t chunk;  ///< how much of a long message is sent, received and reduced as one
  Boxes<Outgoing> out;
  Boxes<Inbox> in;
};

/// A collective as the SDK schedules it (shardrun/sdk/collectives.hpp, which states steps and bytes): what fits into
/// letters goes as letters, the rest straight between the buffers, in pieces: what has arrived is reduced while the
/// next one comes, and local copies are made while messages are under way. That has a slot of the op's own, as Gloo
/// ends the process where more comes than a receive has room for: members that start different ops with long messages
/// wait for each other until a deadline. A letter before could tell them, but cost 50 to 200 us an op.
[[nodiscard]] std::unique_ptr<sdk::Op> make_staged_op(StageBoxes& boxes, Lane& lane, std::unique_ptr<Call> call,
                                                      const sdk::OpSpec& op);

}  // namespace shardrun::gloo_transport
