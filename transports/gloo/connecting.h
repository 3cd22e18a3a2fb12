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

/// Why Gloo threw.
[[nodiscard]] std::string reason_of(const std::exception& error);

/// Connections to all other members of a group.
struct Connections {
  std::unique_ptr<gloo::Context> context;
  std::vector<Protection> protections;  ///< of the connection to each member; none for this one's own
};

/// Connects this member to all others, which prove themselves (handshake.h) before anything else of the connection is
/// read. Of two members the one with the higher number connects; what the others connect to is a listener on this
/// machine's address, closed again when all are there. Whoever else connects to it is dropped; how many those were is
/// said on standard error. The context's waits have no end of their own: one that runs into Gloo's time limit closes
/// the whole context. Throws TransportError: SR_TIMEOUT by the group's deadline, SR_ABORTED soon after the job is to
/// end, SR_PEER_LOST, SR_INVALID. SIGPIPE is blocked.
[[nodiscard]] Connections connect_members(const sdk::Config& config, const sdk::GroupSpec& group,
                                          std::shared_ptr<gloo::transport::Device>& device, std::uint64_t generation);

}  // namespace shardrun::gloo_transport
