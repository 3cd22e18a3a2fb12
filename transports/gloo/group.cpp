#include "transports/gloo/group.h"

#include <shardrun/sdk/agreement.hpp>

#include <string>
#include <utility>
#include <vector>

#include "transports/gloo/signals.h"

namespace shardrun::gloo_transport {
namespace {

using sdk::OpSpec;
using sdk::TransportError;

/// What this member and another tell each other of an op.
struct Exchange {
  sdk::Claim mine;
  sdk::Claim theirs;
  GlooBuffer from;  // after the memory that it touches
  GlooBuffer to;
};

}  // namespace

GlooGroup::GlooGroup(const sdk::Config& config, const sdk::GroupSpec& spec,
                     std::shared_ptr<gloo::transport::Device>& device, std::uint64_t generation, Watchdog& watchdog,
                     std::atomic<std::uint64_t>& wire_bytes)
    : mesh_(config, spec, device, generation, wire_bytes),
      lockstep_(mesh_),
      stage_boxes_(mesh_),
      post_(mesh_),
      lane_([this] {
        const NoSigpipe no_sigpipe;
        mesh_.fail();
      }),
      watchdog_(watchdog) {
  watchdog_.watch(*this);
}

GlooGroup::~GlooGroup() { watchdog_.release(*this); }

std::unique_ptr<sdk::Op> GlooGroup::prepare(std::span<const OpSpec> ops, std::int64_t deadline) {
  const OpSpec& first = ops[0];
  if (!sdk::find_opcode(first.opcode)->collective) {
    return make_batch_op(post_, lane_, ops);
  }
  agree(first, deadline);
  return is_lockstep(first, mesh_.size()) ? make_lockstep_op(lockstep_, lane_, first)
                                          : make_staged_op(stage_boxes_, lane_, first);
}

/// Gloo ends the process where more comes than a receive has room for, so nothing of an op is moved before all members
/// have found that they mean the same. It does not wait behind ops that run: their order to preparations is not
/// the same on all members.
void GlooGroup::agree(const OpSpec& op, std::int64_t deadline) {
  const std::uint32_t n = mesh_.size();
  std::vector<Exchange> exchanges(n);
  lane_.beside("preparing " + describe(op), deadline, [&] {
    const auto slot = slot_of(Stream::agreement);
    for (std::uint32_t distance = 1; distance < n; ++distance) {
      const std::uint32_t peer = (mesh_.rank() + distance) % n;
      Exchange& exchange = exchanges[peer];
      exchange.mine = claim_of(op, mesh_.rank(), peer);
      exchange.from = mesh_.buffer(&exchange.theirs, sizeof(sdk::Claim));
      exchange.to = mesh_.buffer(&exchange.mine, sizeof(sdk::Claim));
      mesh_.receive(*exchange.from, peer, slot, sizeof(sdk::Claim));
      mesh_.send(*exchange.to, peer, slot, sizeof(sdk::Claim));
    }
    for (std::uint32_t distance = 1; distance < n; ++distance) {
      const std::uint32_t peer = (mesh_.rank() + distance) % n;
      mesh_.wait_received(*exchanges[peer].from, peer);
      mesh_.wait_sent(*exchanges[peer].to, peer);
    }
  });
  for (std::uint32_t peer = 0; peer < n; ++peer) {
    if (peer == mesh_.rank()) {
      continue;
    }
    if (const auto why = mismatch(op, mesh_.rank(), peer, exchanges[peer].theirs)) {
      throw TransportError(SR_INVALID, *why);
    }
  }
}

void GlooGroup::abort(std::string_view reason) noexcept { lane_.fail(SR_ABORTED, std::string(reason)); }

std::optional<TransportError> GlooGroup::error() { return lane_.failure(); }

void GlooGroup::look() noexcept {
  lane_.check_deadlines();
  mesh_.check_connections();
}

void GlooGroup::end_of_job() noexcept { lane_.fail(SR_ABORTED, "the job ends"); }

}  // namespace shardrun::gloo_transport
