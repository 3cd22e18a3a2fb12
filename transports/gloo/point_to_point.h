#pragma once

#include <shardrun/sdk/transport/op.hpp>

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "transports/gloo/full_mesh.h"
#include "transports/gloo/messages.h"
#include "transports/gloo/op_queue.h"

namespace shardrun::gloo_transport {

/// Sends and receives of a group. Keeps a message that arrives before its receive runs (an unexpected message).
class PointToPoint {
 public:
  explicit PointToPoint(FullMesh& mesh);

  [[nodiscard]] FullMesh& mesh() noexcept { return mesh_; }
  /// A Gloo slot that no message to `peer` has used.
  [[nodiscard]] std::uint64_t new_slot(std::uint32_t peer) { return slot_of(Channel::message_data, sent_[peer]++); }
  /// Waits for the first message from `peer` with that id that was not matched yet. It stays valid until `release`.
  [[nodiscard]] const EagerMessage& match(std::uint32_t peer, std::uint64_t id);
  void release(std::uint32_t peer) { in_[peer].recycle(); }

 private:
  FullMesh& mesh_;
  PerPeer<EagerReceiver> in_;
  std::vector<std::deque<std::unique_ptr<EagerMessage>>> unexpected_;
  std::vector<std::uint64_t> sent_;
  std::unique_ptr<EagerMessage> matched_;
};

/// Runs sends and receives as one op, in any order. A message of more than eager_bytes is announced by an eager one, so
/// its size is known before it is received.
[[nodiscard]] std::unique_ptr<sdk::Op> make_batch_op(PointToPoint& point_to_point, OpQueue& queue,
                                                     std::span<const sdk::OpSpec> ops);

}  // namespace shardrun::gloo_transport
