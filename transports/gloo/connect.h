#pragma once

#include <gloo/context.h>
#include <gloo/transport/device.h>
#include <shardrun/sdk/transport.hpp>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>

#include "transports/gloo/waits.h"

namespace shardrun::gloo_transport {

using Device = std::shared_ptr<gloo::transport::Device>;

/// Connects a group's members with Gloo. They meet in the job's store. All waits of the result, also those in Gloo's
/// own collectives, go through `waits`, and take their time limits from limit_of. `wire_bytes` counts what is sent,
/// including Gloo's preambles. A failed group leaves its entries in the store; the `generation`, a count of such
/// groups, distinguishes them from those of the next group of the same members. All arguments outlive the result.
/// Throws TransportError.
[[nodiscard]] std::shared_ptr<gloo::Context> connect(const sdk::Config& config, const sdk::GroupSpec& group,
                                                     std::uint64_t generation, Device device, Waits& waits,
                                                     std::atomic<std::uint64_t>& wire_bytes);

/// Converts a deadline to a time limit.
[[nodiscard]] std::chrono::milliseconds limit_of(sdk::Deadline deadline) noexcept;

}  // namespace shardrun::gloo_transport
