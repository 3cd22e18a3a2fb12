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

/// Connects a group's members by Gloo, which meet in the job's store. What waits in the result, Gloo's own collectives
/// too, waits through `waits`, and takes its time limit from limit_of. `wire_bytes` counts what is sent, Gloo's
/// preambles included. A failed group leaves its entries in the store: the `generation` keeps the next one of the same
/// members apart from them. All arguments outlive the result. Throws TransportError.
[[nodiscard]] std::shared_ptr<gloo::Context> connect(const sdk::Config& config, const sdk::GroupSpec& group,
                                                     std::uint64_t generation, Device device, Waits& waits,
                                                     std::atomic<std::uint64_t>& wire_bytes);

/// A deadline as a time limit.
[[nodiscard]] std::chrono::milliseconds limit_of(sdk::Deadline deadline) noexcept;

}  // namespace shardrun::gloo_transport
