#include "transports/shm/group.h"

#include <unistd.h>

#include <algorithm>
#include <exception>
#include <utility>

namespace shardrun::shm_transport {

namespace {

/// A collective is short if no member sends more than this. Short collectives are staged, and so are collectives with
/// buffers that others cannot map.
constexpr std::uint64_t max_short_bytes = 1024;

/// The largest staging buffer.
constexpr std::uint64_t max_staging_bytes = 65'536;

/// The total size of the staging buffers of a root that runs ahead. They must stay within a core's cache.
constexpr std::uint64_t max_ahead_bytes = 8192;

/// The group's prefix in the store. The id is not enough: groups without a common member may have the same id, and a
/// later group may have the same members and id.
std::string key_of(ShmTransportState& state, const GroupSpec& spec) {
  std::string key = "shm/" + std::to_string(spec.id) + "/";
  for (const std::uint32_t member : spec.members) {
    key += std::to_string(member) + ".";
  }
  const std::uint64_t generation = state.generations[key]++;
  return key + "/" + std::to_string(generation) + "/";
}

}  // namespace

std::optional<MemoryRef> mappable(const ShmTransportState& state, const Buffer& buffer, std::uint64_t bytes) {
  const std::shared_lock lock(state.registrations_mutex);
  const auto registered = state.registrations.find(buffer.registration);
  if (registered == state.registrations.end() || registered->second.descriptor < 0) {
    return std::nullopt;
  }
  const Registration& memory = registered->second;
  auto* const data = static_cast<std::byte*>(buffer.data);
  if (data < memory.data || static_cast<std::uint64_t>(data - memory.data) + bytes > memory.bytes) {
    return std::nullopt;
  }
  const std::uint64_t offset = memory.offset + static_cast<std::uint64_t>(data - memory.data);
  return MemoryRef{getpid(), memory.descriptor, memory.inode, offset, bytes};
}

ShmGroup::ShmGroup(ShmTransportState& state, const GroupSpec& spec)
    : state_(state), control_(state.config, spec, key_of(state, spec)), worker_([this] {
        cancelled_.store(true, std::memory_order_release);
        control_.mark_failed();
      }) {
  for (std::uint32_t m = 0; m < control_.size(); ++m) {
    send_rings_.emplace_back(control_.pair(control_.rank(), m));
    receive_rings_.emplace_back(control_.pair(m, control_.rank()));
  }
}

void ShmGroup::check() {
  if (worker_.failed()) {
    throw TransportError(*worker_.failure());
  }
}

std::shared_ptr<std::byte> ShmGroup::memory_of(std::uint32_t member, const MemoryRef& ref) {
  try {
    return state_.peer_memory.resolve(ref);
  } catch (const TransportError&) {
    if (control_.is_gone(member)) {
      throw control_.gone(member);
    }
    throw;
  }
}

Agreed ShmGroup::agree(const OpSpec& op, const Offer& offer, sdk::Deadline deadline) {
  publish(op, offer);
  barrier(op, deadline);
  Agreed agreed;
  std::optional<std::string> difference = own_difference(op);
  if (!difference) {
    agreed = collect(op);
  }
  if (control_.rank() == 0) {
    std::byte* const segment =
        control_.assign_segment(difference ? std::nullopt : std::optional(agreed.segment_bytes()));
    if (segment != nullptr) {
      agreed.clear(segment);
    }
  }
  control_.member(control_.rank()).disagrees = difference ? 1 : 0;
  barrier(op, deadline);
  agreed.segment = control_.assigned_segment();
  if (!difference) {
    difference = difference_of_others(op);
  }
  // A barrier, so that no member changes its description before all have read it.
  barrier(op, deadline);
  if (difference) {
    throw TransportError(SR_INVALID, *difference);
  }
  return agreed;
}

void ShmGroup::barrier(const OpSpec& op, sdk::Deadline deadline) {
  const std::uint64_t number = ++barriers_;
  control_.preparing(control_.rank()).reached.store(number);
  control_.notify();
  const auto has_arrived = [&](std::uint32_t m) { return control_.preparing(m).reached.load() >= number; };
  const auto all_arrived = [&] {
    for (std::uint32_t m = 0; m < control_.size(); ++m) {
      if (!has_arrived(m)) {
        return false;
      }
    }
    return true;
  };
  Control::NextCheck next_check = sdk::Deadline::past();
  if (control_.wait(deadline, next_check, cancelled_, Control::everyone, all_arrived)) {
    return;
  }
  std::vector<std::uint32_t> missing;
  for (std::uint32_t m = 0; m < control_.size(); ++m) {
    if (!has_arrived(m)) {
      missing.push_back(m);
    }
  }
  throw control_.past_deadline("preparing " + shardrun::sdk::describe(op) + ": past the deadline", missing);
}

void ShmGroup::publish(const OpSpec& op, const Offer& offer) {
  const std::uint32_t rank = control_.rank();
  Member& self = control_.member(rank);
  self.send = offer.send;
  self.recv = offer.recv;
  self.is_mappable = offer.is_mappable ? 1 : 0;
  self.sent_bytes = offer.sent_bytes;
  self.block_bytes = offer.block_bytes;
  for (std::uint32_t to = 0; to < control_.size(); ++to) {
    const std::uint64_t offset = op.opcode == SR_OP_ALL_TO_ALLV ? shardrun::sdk::send_block(op, rank, to).offset : 0;
    control_.claim(rank, to) = {shardrun::sdk::claim_of(op, rank, to), offset};
  }
}

Agreed ShmGroup::collect(const OpSpec& op) {
  Agreed agreed;
  choose_protocol(op, agreed);
  for (std::uint32_t m = 0; m < control_.size(); ++m) {
    const Member& member = control_.member(m);
    const bool is_peer_mapped = agreed.is_mapped && m != control_.rank();
    agreed.sends.push_back(is_peer_mapped ? memory_of(m, member.send) : nullptr);
    agreed.recvs.push_back(is_peer_mapped ? memory_of(m, member.recv) : nullptr);
    if (op.opcode == SR_OP_ALL_TO_ALLV) {
      agreed.offsets.push_back(control_.claim(m, control_.rank()).offset);
    }
  }
  return agreed;
}

/// Chooses how to run the collective. It uses only what all members published, so all choose the same.
void ShmGroup::choose_protocol(const OpSpec& op, Agreed& agreed) const {
  bool are_mappable = true;
  std::uint64_t most = 0;
  std::uint64_t block = 0;
  for (std::uint32_t m = 0; m < control_.size(); ++m) {
    const Member& member = control_.member(m);
    are_mappable = are_mappable && member.is_mappable != 0;
    most = std::max(most, member.sent_bytes);
    block = std::max(block, member.block_bytes);
  }
  agreed.members = control_.size();
  const bool is_short = most <= max_short_bytes;
  agreed.is_mapped = are_mappable && !is_short;
  if (agreed.is_mapped) {
    return;
  }
  const std::uint64_t blocks = blocks_of(op.opcode, control_.size());
  // Divisible by the size of every element type.
  const std::uint64_t block_of_staging = std::max<std::uint64_t>(64, max_staging_bytes / blocks / 64 * 64);
  const bool is_one_piece = is_short || block <= block_of_staging;
  agreed.piece_bytes = is_one_piece ? (block + 7) / 8 * 8 : block_of_staging;
  agreed.staging_bytes = blocks * agreed.piece_bytes;
  if (agreed.staging_bytes > sizeof(Progress) - sizeof(std::uint64_t)) {
    agreed.piece_bytes = align_up(agreed.piece_bytes);
    agreed.staging_bytes = blocks * agreed.piece_bytes;
  }
  agreed.rounds = is_one_piece ? 1 : static_cast<std::uint32_t>((block + agreed.piece_bytes - 1) / agreed.piece_bytes);
  agreed.staging_buffers = 2;
  if (is_short && shardrun::sdk::find_opcode(op.opcode)->has_root) {
    // A sender that runs ahead of its readers gets more buffers, and seldom checks the readers' progress.
    agreed.staging_buffers =
        static_cast<std::uint32_t>(std::clamp<std::uint64_t>(max_ahead_bytes / agreed.stride(), 4, 64));
  } else if (is_short) {
    agreed.staging_buffers = 4;
  }
}

std::optional<std::string> ShmGroup::own_difference(const OpSpec& op) const {
  for (std::uint32_t m = 0; m < control_.size(); ++m) {
    if (m == control_.rank()) {
      continue;
    }
    const PeerClaim& claim = control_.claim(m, control_.rank());
    if (auto why = shardrun::sdk::mismatch(op, control_.rank(), m, claim.claim)) {
      return why;
    }
  }
  return std::nullopt;
}

std::optional<std::string> ShmGroup::difference_of_others(const OpSpec& op) const {
  for (std::uint32_t m = 0; m < control_.size(); ++m) {
    if (control_.member(m).disagrees != 0) {
      return control_.name_of(m) + " and another member do not mean the same op; this member has " +
             shardrun::sdk::describe(op);
    }
  }
  return std::nullopt;
}

std::unique_ptr<shardrun::sdk::Op> ShmGroup::prepare(std::span<const OpSpec> ops, sdk::Deadline deadline) {
  check();
  try {
    return shardrun::sdk::find_opcode(ops[0].opcode)->collective ? make_collective(*this, ops[0], deadline)
                                                                 : make_batch(*this, ops);
  } catch (const TransportError& error) {
    // A mismatch is an error of the callers and leaves the group usable. Every other error fails the group.
    if (error.status() != SR_INVALID) {
      fail(error);
    }
    throw;
  } catch (const std::exception& error) {
    fail({SR_INTERNAL, error.what()});
    throw;
  }
}

}  // namespace shardrun::shm_transport
