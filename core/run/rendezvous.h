#pragma once

#include <functional>
#include <string>
#include <vector>

#include "core/base/error.h"
#include "core/job/job.h"
#include "core/launch/world.h"
#include "plugins/loader/transport.h"

namespace shardrun::run {

/// How ranks that another launcher started find rank 0: by an address that all of them know, or through a transport.
struct Rendezvous {
  launch::Invitation invitation;  ///< set if all ranks know the address
  /// Otherwise: transports that may be able to tell the address. The first one that can is used.
  std::vector<plugins::Transport> messengers;
};

/// Transports of the ranks, of which one may tell them where they meet.
struct Messengers {
  std::string place;  ///< the place of the setting that names them, for messages
  plugins::Directories directories;
  std::function<std::vector<plugins::Transport>()> load;  ///< loads and configures them, without opening them
};
[[nodiscard]] Messengers messengers_of(const job::Job& job);

/// Decides how the ranks find rank 0. Under mpirun, mpiexec or srun, MASTER_ADDR may be left over from something else,
/// so it is used only with SHARDRUN_TOKEN, or if no transport can be a messenger. Throws Error{usage} if there is
/// neither an address nor a messenger.
[[nodiscard]] Rendezvous rendezvous_of(const Messengers& messengers, const launch::World& world);

/// The address at which rank 0 must listen. Port 0: rank 0 chooses the port.
[[nodiscard]] launch::Invitation invitation_of(const Rendezvous& rendezvous, const launch::World& world);

/// Called on rank 0: tells the other ranks its address. Port 0 tells them that rank 0 could not begin. Returns false if
/// no messenger can tell it.
[[nodiscard]] bool invite(Rendezvous& rendezvous, const launch::World& world, const launch::Invitation& invitation);

/// Called on other ranks: returns the invitation. Throws Error{usage} if no messenger can tell it.
[[nodiscard]] launch::Invitation hear_invitation(const Messengers& messengers, Rendezvous& rendezvous,
                                                 const launch::World& world);

/// The error for a missing address, with a remedy.
[[nodiscard]] Error no_place(const Messengers& messengers, const launch::World& world);

}  // namespace shardrun::run
