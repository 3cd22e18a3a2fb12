#pragma once

#include <gloo/context.h>
#include <shardrun/sdk/transport/op.hpp>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>

namespace shardrun::gloo_transport {

/// Whether Gloo has a collective for the op. All members get the same answer. REQUIRES: check(op, n) passed.
[[nodiscard]] bool gloo_has(const sdk::OpSpec& op, std::uint32_t n);

struct GlooCall {
  std::shared_ptr<gloo::Context> context;
  std::uint32_t tag = 0;                 ///< the same on all members, and unique among the group's collectives
  std::size_t segment_bytes = 0;         ///< bytes of a sum that are sent, received and reduced at a time
  std::chrono::milliseconds limit = {};  ///< the deadline, as limit_of() in connect.h encodes it
};

/// Runs the op with Gloo. A reduce writes to its scratch, of its buffer's size, on members other than the root. Throws
/// what Waits throws. REQUIRES: gloo_has(op, n).
void run_by_gloo(const sdk::OpSpec& op, const GlooCall& call);

}  // namespace shardrun::gloo_transport
