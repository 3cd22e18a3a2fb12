#pragma once

#include <shardrun/sdk/transport.hpp>

#include <cstdint>

#include "transports/gloo/keys.h"
#include "transports/gloo/socket.h"

namespace shardrun::gloo_transport {

/// [transport.gloo] protect
[[nodiscard]] sdk::Option protect_option();

/// How a connection between two ranks is protected. Both ends decide the same, as long as no network between them
/// translates addresses. The host names that ranks give are not enough for `none`, since two machines may have one
/// name. So `auto` also requires that the two addresses belong to one machine.
[[nodiscard]] Protection protection_between(const sdk::Config& config, std::uint32_t one_rank, std::uint32_t other_rank,
                                            const Endpoint& from, const Endpoint& to);

}  // namespace shardrun::gloo_transport
