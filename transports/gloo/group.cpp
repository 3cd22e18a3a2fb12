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
      one_shot_(mesh_),
      staged_messages_(mesh_, chunk_bytes_of(config.options)),
      point_to_point_(mesh_),
      queue_(
          [this] {
            const NoSigpipe no_sigpipe;
            mesh_.fail();
          },
          [this](std::thread::id thread) { return mesh_.awaited_by(thread); }),
      watching_(watchdog, *this) {
  confirm_connections(spec);
}

/// A connection is complete on one side before the other. So every member receives from all others before anyone can
/// abort or leave the group.
void GlooGroup::confirm_connections(const sdk::GroupSpec& spec) {
  std::vector<std::uint8_t> words(mesh_.size());
  const auto word = [&](std::uint32_t member) { return &words[member]; };
  queue_.run_concurrently("connecting the group '" + spec.name + "'", spec.deadline, [&] {
    exchange(
        1, [&](std::uint32_t) { return word(mesh_.rank()); }, word);
  });
}

std::unique_ptr<sdk::Op> GlooGroup::prepare(std::span<const OpSpec> ops, std::int64_t deadline) {
  const OpSpec& first = ops[0];
  if (!sdk::find_opcode(first.opcode)->collective) {
    return make_batch_op(point_to_point_, queue_, ops);
  }
  agree(first, deadline);
  auto prepared = prepared_.add(first);
  return is_one_shot(first, mesh_.size()) ? make_one_shot_op(one_shot_, queue_, std::move(prepared), first)
                                          : make_staged_op(staged_messages_, queue_, std::move(prepared), first);
}

/// Gloo ends the process where more bytes arrive than a receive has room for. So no byte of an op moves before all
/// members have found that their descriptions match. It does not queue behind running ops, whose order relative to
/// preparations differs between members.
void GlooGroup::agree(const OpSpec& op, std::int64_t deadline) {
  sdk::Agreement agreement(op, mesh_.rank(), mesh_.size());
  queue_.run_concurrently("preparing " + describe(op), deadline, [&] {
    for (std::uint32_t round = 0; round < sdk::Agreement::rounds; ++round) {
      exchange(
          agreement.bytes(round), [&](std::uint32_t peer) { return agreement.outgoing(round, peer); },
          [&](std::uint32_t peer) { return agreement.incoming(round, peer); });
      agreement.conclude(round);
    }
  });
  if (const auto& why = agreement.difference()) {
    throw TransportError(SR_INVALID, *why);
  }
}

void GlooGroup::exchange(std::size_t bytes, const BufferOf& sent, const BufferOf& received) {
  const std::uint32_t n = mesh_.size();
  const auto slot = slot_of(Channel::agreement);
  std::vector<GlooBuffer> from(n);
  std::vector<GlooBuffer> to(n);
  for (std::uint32_t distance = 1; distance < n; ++distance) {
    const std::uint32_t peer = (mesh_.rank() + distance) % n;
    from[peer] = mesh_.buffer(received(peer), bytes);
    to[peer] = mesh_.buffer(sent(peer), bytes);
    mesh_.receive(*from[peer], peer, slot, bytes);
    mesh_.send(*to[peer], peer, slot, bytes);
  }
  for (std::uint32_t distance = 1; distance < n; ++distance) {
    const std::uint32_t peer = (mesh_.rank() + distance) % n;
    mesh_.wait_received(*from[peer], peer);
    mesh_.wait_sent(*to[peer], peer);
  }
}

void GlooGroup::abort(std::string_view reason) noexcept { queue_.fail({SR_ABORTED, std::string(reason)}); }

std::optional<TransportError> GlooGroup::error() { return queue_.failure(); }

void GlooGroup::check() noexcept {
  queue_.check_deadlines();
  mesh_.check_connections();
}

void GlooGroup::on_job_end() noexcept { queue_.fail({SR_ABORTED, "the job ends"}); }

}  // namespace shardrun::gloo_transport
