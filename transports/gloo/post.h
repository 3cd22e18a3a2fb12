#pragma once

#include <shardrun/sdk/op.hpp>

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "transports/gloo/lane.h"
#include "transports/gloo/letters.h"
#include "transports/gloo/mesh.h"

namespace shardrun::gloo_transport {

/// The letters of a group's sends. One that comes before its receive is looked for is kept aside.
class Post {
 public:
  explicit Post(Mesh& mesh);

  [[nodiscard]] Mesh& mesh() noexcept { return mesh_; }
  /// A slot that no message to `peer` had before.
  [[nodiscard]] std::uint64_t new_slot(std::uint32_t peer) { return slot_of(Stream::letter_data, sent_[peer]++); }
  /// Waits for the first letter from `peer` with that id that nobody took; it stays until `done`.
  [[nodiscard]] const Letter& take(std::uint32_t peer, std::uint64_t id);
  void done(std::uint32_t peer) { in_[peer].recycle(); }

 private:
  Mesh& mesh_;
  Boxes<Inbox> in_;
  std::vector<std::deque<std::unique_ptr<Letter>>> aside_;
  std::vector<std::uint64_t> sent_;
  std::unique_ptr<Letter> taken_;
};

/// Sends and receives as one unit, in any order. What fits goes with its letter; a longer message is announced by one,
/// so that its size is known before it is received.
[[nodiscard]] std::unique_ptr<sdk::Op> make_batch_op(Post& post, Lane& lane, std::span<const sdk::OpSpec> ops);

}  // namespace shardrun::gloo_transport
