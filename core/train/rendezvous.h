#pragma once

#include <vector>

#include "core/base/error.h"
#include "core/job/job.h"
#include "core/launch/world.h"
#include "plugins/loader/transport.h"

namespace shardrun::train {

/// Where ranks that another launcher has started meet: at a place that all know, or one that a transport tells them.
struct Rendezvous {
  launch::Invitation invitation;               ///< if all know the place
  std::vector<plugins::Transport> messengers;  ///< otherwise: transports that may tell it; the first that can does
};

/// A launcher with its own way may have inherited MASTER_ADDR from something else. The token shows that it is ours.
/// Throws Error{usage} if there is neither a place nor a messenger.
[[nodiscard]] Rendezvous rendezvous_of(const job::Job& job, const launch::World& world);

/// Rank 0 tells the others where they meet, or with an invitation without a port that there is no place. False if it
/// cannot.
[[nodiscard]] bool invite(Rendezvous& rendezvous, const launch::World& world, const launch::Invitation& invitation);

/// The invitation that another rank gets. Throws Error{usage} if no messenger can.
[[nodiscard]] launch::Invitation hear_invitation(const job::Job& job, Rendezvous& rendezvous,
                                                 const launch::World& world);

/// The error for a missing place, with what to do.
[[nodiscard]] Error no_place(const job::Job& job, const launch::World& world);

}  // namespace shardrun::train
