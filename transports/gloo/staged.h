#pragma once

#include <shardrun/sdk/transport/op.hpp>

#include <cstdint>
#include <memory>

#include "transports/gloo/full_mesh.h"
#include "transports/gloo/messages.h"
#include "transports/gloo/op_queue.h"
#include "transports/gloo/prepared_collectives.h"

namespace shardrun::gloo_transport {

/// The eager messages of a group's staged ops. One receive is posted for each member, again once its message was read.
/// So a member that leaves after its last op leaves nothing unread.
struct StagedMessages {
  /// `chunk_bytes`: see `chunk`; the same on all members, and a multiple of every element's size.
  StagedMessages(FullMesh& connections, std::uint64_t chunk_bytes);

  FullMesh& mesh;
  std::uint64_t chunk;  ///< how much of a long message is sent, received and reduced at a time
  PerPeer<EagerSender> out;
  PerPeer<EagerReceiver> in;
};

/// A collective as the SDK schedules it (shardrun/sdk/transport/collectives.hpp states steps and bytes). Messages of at
/// most eager_bytes are eager. Longer ones go directly between the buffers, in pieces: a piece is reduced while the
/// next one arrives, and local copies run meanwhile.
///
/// Long messages use a Gloo slot of the op's own, because Gloo ends the process where more bytes arrive than a receive
/// has room for. So members that start different ops with long messages wait until a deadline. A message beforehand
/// could detect that, but would cost 50 to 200 us per op.
[[nodiscard]] std::unique_ptr<sdk::Op> make_staged_op(StagedMessages& messages, OpQueue& queue,
                                                      std::unique_ptr<PreparedCollective> prepared,
                                                      const sdk::OpSpec& op);

}  // namespace shardrun::gloo_transport
