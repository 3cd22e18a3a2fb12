#include "transports/gloo/group.h"

#include <shardrun/sdk/agreement.hpp>

#include <string>
#include <utility>
#include <vector>

#include "transports/gloo/protection.h"
#include "transports/gloo/signals.h"

namespace shardrun::gloo_transport {

using sdk::OpSpec;
using sdk::TransportError;

std::vector<sdk::Option> group_options() {
  return {sdk::integer_option("chunk", 1024, 8, 1 << 20,
                              "KiB of a long message that are sent, received and reduced at a time"),
          protect_option()};
}

namespace {

std::uint64_t chunk_bytes_of(const sdk::OptionValues& options) {
  return static_cast<std::uint64_t>(options.integer("chunk")) << 10U;
}

}  // namespace

GlooGroup::GlooGroup(const sdk::Config& config, const sdk::GroupSpec& spec,
                     std::shared_ptr<gloo::transport::Device>& device, std::uint64_t generation, Watchdog& watchdog,
                     std::atomic<std::uint64_t>& wire_bytes)
    : mesh_(config, spec, device, generation, wire_bytes),
      lockstep_(mesh_),
      stage_boxes_(mesh_, chunk_bytes_of(config.options)),
      post_(mesh_),
      lane_(
          [this] {
            const NoSigpipe no_sigpipe;
            mesh_.fail();
          },
          [this](std::thread::id thread) { return mesh_.awaited_by(thread); }),
      watching_(watchdog, *this) {
  greet(spec);
}

/// A connection is complete here before it is on the other side. So nobody has a group, to abort or to leave it, before
/// it has heard from all others.
void GlooGroup::greet(const sdk::GroupSpec& spec) {
  std::vector<std::uint8_t> words(mesh_.size());
  const auto word = [&](std::uint32_t member) { return &words[member]; };
  lane_.beside("connecting the group '" + spec.name + "'", spec.deadline, [&] {
    exchange(
        1, [&](std::uint32_t) { return word(mesh_.rank()); }, word);
  });
}

std::unique_ptr<sdk::Op> GlooGroup::prepare(std::span<const OpSpec> ops, std::int64_t deadline) {
  const OpSpec& first = ops[0];
  if (!sdk::find_opcode(first.opcode)->collective) {
    return make_batch_op(post_, lane_, ops);
  }
  agree(first, deadline);
  auto call = calls_.enter(first);
  return is_lockstep(first, mesh_.size()) ? make_lockstep_op(lockstep_, lane_, std::move(call), first)
                                          : make_staged_op(stage_boxes_, lane_, std::move(call), first);
}

/// Gloo ends the process where more comes than a receive has room for, so nothing of an op is moved before all members
/// have found that they mean the same. It does not wait behind ops that run: their order to preparations is not
/// the same on all members.
void GlooGroup::agree(const OpSpec& op, std::int64_t deadline) {
  sdk::Agreement agreement(op, mesh_.rank(), mesh_.size());
  lane_.beside("preparing " + describe(op), deadline, [&] {
    for (std::uint32_t round = 0; round < sdk::Agreement::rounds; ++round) {
      exchange(
          agreement.bytes(round), [&](std::uint32_t peer) { return agreement.gives(round, peer); },
          [&](std::uint32_t peer) { return agreement.takes(round, peer); });
      agreement.conclude(round);
    }
  });
  if (const auto& why = agreement.difference()) {
    throw TransportError(SR_INVALID, *why);
  }
}

void GlooGroup::exchange(std::size_t bytes, const Place& given, const Place& taken) {
  const std::uint32_t n = mesh_.size();
  const auto slot = slot_of(Stream::agreement);
  std::vector<GlooBuffer> from(n);
  std::vector<GlooBuffer> to(n);
  for (std::uint32_t distance = 1; distance < n; ++distance) {
    const std::uint32_t peer = (mesh_.rank() + distance) % n;
    from[peer] = mesh_.buffer(taken(peer), bytes);
    to[peer] = mesh_.buffer(given(peer), bytes);
    mesh_.receive(*from[peer], peer, slot, bytes);
    mesh_.send(*to[peer], peer, slot, bytes);
  }
  for (std::uint32_t distance = 1; distance < n; ++distance) {
    const std::uint32_t peer = (mesh_.rank() + distance) % n;
    mesh_.wait_received(*from[peer], peer);
    mesh_.wait_sent(*to[peer], peer);
  }
}

void GlooGroup::abort(std::string_view reason) noexcept { lane_.fail({SR_ABORTED, std::string(reason)}); }

std::optional<TransportError> GlooGroup::error() { return lane_.failure(); }

void GlooGroup::look() noexcept {
  lane_.check_deadlines();
  mesh_.check_connections();
}

void GlooGroup::end_of_job() noexcept { lane_.fail({SR_ABORTED, "the job ends"}); }

}  // namespace shardrun::gloo_transport
