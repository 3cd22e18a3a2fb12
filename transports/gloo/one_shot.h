#pragma once

#include <shardrun/sdk/transport/op.hpp>

#include <memory>
#include <string>

#include "transports/gloo/full_mesh.h"
#include "transports/gloo/messages.h"
#include "transports/gloo/op_queue.h"
#include "transports/gloo/prepared_collectives.h"

namespace shardrun::gloo_transport {

/// Whether an op in a group of n runs one-shot: every member sends one eager message to every other. The same on all
/// members. Takes one stage and (n-1) times the op's block on the wire. A ring takes n-1 or 2(n-1) stages. REQUIRES:
/// check(op, n) passed.
[[nodiscard]] bool is_one_shot(const sdk::OpSpec& op, std::uint32_t n);

/// The eager messages of a group's one-shot ops.
///
/// Every member receives from every other in every op, so no member is more than one op ahead. Two receives are posted
/// for each member, again before this member's own messages are sent. So a message never waits for a receive.
struct OneShot {
  explicit OneShot(FullMesh& connections);

  FullMesh& mesh;
  PerPeer<EagerSender> out;
  PerPeer<EagerReceiver> in;
  std::unique_ptr<EagerMessage> own;  ///< the message that this member would send to itself
};

/// Reduces in the order of the members, so all get the same bits, for any buffers.
[[nodiscard]] std::unique_ptr<sdk::Op> make_one_shot_op(OneShot& one_shot, OpQueue& queue,
                                                        std::unique_ptr<PreparedCollective> prepared,
                                                        const sdk::OpSpec& op);

}  // namespace shardrun::gloo_transport
