#pragma once

#include <shardrun/sdk/op.hpp>

#include <memory>
#include <string>

#include "transports/gloo/calls.h"
#include "transports/gloo/lane.h"
#include "transports/gloo/letters.h"
#include "transports/gloo/mesh.h"

namespace shardrun::gloo_transport {

/// Whether an op in a group of n is done in lockstep: every member sends one letter to every other. The same on all
/// members. Takes one stage and (n-1) times the op's block on the wire, where a ring takes n-1 or 2(n-1) stages.
/// REQUIRES: check(op, n) passed.
[[nodiscard]] bool is_lockstep(const sdk::OpSpec& op, std::uint32_t n);

/// The letters of a group's ops in lockstep.
///
/// Every member hears from every other in every op: nobody can be more than one op ahead. With room for two letters
/// from each, and made again before this member's own letters go, a letter never waits for room.
struct Lockstep {
  explicit Lockstep(Mesh& connections);

  Mesh& mesh;
  Boxes<Outgoing> out;
  Boxes<Inbox> in;
  std::unique_ptr<Letter> own;  ///< what this member would send to itself
};

/// Reduces in the order of the members: all get the same bits, for any buffers.
[[nodiscard]] std::unique_ptr<sdk::Op> make_lockstep_op(Lockstep& lockstep, Lane& lane, std::unique_ptr<Call> call,
                                                        const sdk::OpSpec& op);

}  // namespace shardrun::gloo_transport
