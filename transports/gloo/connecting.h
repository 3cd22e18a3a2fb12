#pragma once

#include <gloo/context.h>
#include <gloo/transport/device.h>
#include <shardrun/sdk/transport.hpp>

#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "transports/gloo/keys.h"

namespace shardrun::gloo_transport {

/// The reason in an exception of Gloo's.
[[nodiscard]] std::string reason_of(const std::exception& error);

/// Connections to all other members of a group.
struct Connections {
  std::unique_ptr<gloo::Context> context;
  std::vector<Protection> protections;  ///< of the connection to each member; none for this one's own
};

/// Connects this member to all others. Of two members the one with the higher number connects. The other accepts, on a
/// listener on this machine's address, which is closed once all are connected. Every connection is authenticated
/// (handshake.h) before anything else is read from it. Others that connect are dropped, and their number is printed to
/// standard error. Throws TransportError:
/// - SR_TIMEOUT by the group's deadline
/// - SR_ABORTED soon after the job is to end
/// - SR_PEER_LOST, SR_INVALID
/// Waits of the context have no time limit of their own: one that reaches Gloo's limit closes the whole context.
/// SIGPIPE is blocked.
[[nodiscard]] Connections connect_members(const sdk::Config& config, const sdk::GroupSpec& group,
                                          std::shared_ptr<gloo::transport::Device>& device, std::uint64_t generation);

}  // namespace shardrun::gloo_transport
