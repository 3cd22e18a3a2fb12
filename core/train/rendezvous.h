#pragma once

#include <vector>

#include "core/base/error.h"
#include "core/job/job.h"
#include "core/launch/world.h"
#include "plugins/loader/transport.h"

namespace shardrun::train {

/// Where ranks that another launcher has started meet: a place that all know, or one that a transport tells them of.
struct Rendezvous {
  launch::Invitation invitation;               ///< of a place that all know
  std::vector<plugins::Transport> messengers;  ///< else: the first that can, of those that may be able to
};

/// A launcher that has another way may have inherited MASTER_ADDR from something else: the token shows that it is ours.
/// Throws Error{usage} where there is neither a place nor a messenger.
[[nodiscard]] Rendezvous rendezvous_of(const job::Job& job, const launch::World& world);

/// Rank 0 tells the others where they meet, or, by an invitation without a port, that there is no place. False where it
/// cannot.
[[nodiscard]] bool invite(Rendezvous& rendezvous, const launch::World& world, const launch::Invitation& invitation);

/// What another rank hears. Throws Error{usage} where no messenger can.
[[nodiscard]] launch::Invitation hear_invitation(const job::Job& job, Rendezvous& rendezvous,
                                                 const launch::World& world);

/// Says what to do about it.
[[nodiscard]] Error no_place(const job::Job& job, const launch::World& world);

}  // namespace shardrun::train
