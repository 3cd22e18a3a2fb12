#pragma once

#include <gloo/context.h>
#include <gloo/transport/device.h>
#include <shardrun/sdk/transport.hpp>
#include <shardrun/sdk/transport/op.hpp>

#include <atomic>
#include <chrono>
#include <cstddef>
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

/// Encodes a deadline as one of Gloo's time limits: the deadline's own time, not the time left. See deadline_of().
[[nodiscard]] std::chrono::milliseconds limit_of(sdk::Deadline deadline) noexcept;

/// Whether Gloo has a collective for the op. All members get the same answer. REQUIRES: check(op, n) passed.
[[nodiscard]] bool gloo_has(const sdk::OpSpec& op, std::uint32_t n);

struct GlooCall {
  std::shared_ptr<gloo::Context> context;
  std::uint32_t tag = 0;                 ///< the same on all members, and unique among the group's collectives
  std::size_t segment_bytes = 0;         ///< bytes of a sum that are sent, received and reduced at a time
  std::chrono::milliseconds limit = {};  ///< the deadline, as limit_of() encodes it
};

/// Runs the op with Gloo. A reduce writes to its scratch, of its buffer's size, on members other than the root. Throws
/// what Waits throws. REQUIRES: gloo_has(op, n).
void run_by_gloo(const sdk::OpSpec& op, const GlooCall& call);

}  // namespace shardrun::gloo_transport
