#include "group.h"

#include <unistd.h>

#include <algorithm>
#include <exception>
#include <mutex>
#include <utility>

namespace shm {

namespace {

/// Where no member sends more, and where others' memory cannot be mapped, it goes through slots.
constexpr std::uint64_t most_mail_bytes = 1024;

/// Of a slot that takes piece after piece.
constexpr std::uint64_t slot_bytes = 65'536;

/// Of the slots of a root that runs ahead: no more than stay in a core's own cache.
constexpr std::uint64_t most_ahead_bytes = 8192;

/// The name of a group in the store: its id alone is not, as groups without a common member may have one id, and a
/// group may follow another with the same members and id.
std::string key_of(Shared& shared, const GroupSpec& spec) {
  std::string key = "shm/" + std::to_string(spec.id) + "/";
  for (const std::uint32_t member : spec.members) {
    key += std::to_string(member) + ".";
  }
  const std::uint64_t generation = shared.generations[key]++;
  return key + "/" + std::to_string(generation) + "/";
}

}  // namespace

std::optional<MemoryRef> mappable(const Shared& shared, const Buffer& buffer, std::uint64_t bytes) {
  const std::shared_lock lock(shared.registrations_mutex);
  const auto registered = shared.registrations.find(buffer.registration);
  if (registered == shared.registrations.end() || registered->second.descriptor < 0) {
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

Group::Group(Shared& shared, const GroupSpec& spec)
    : shared_(shared), control_(shared.config, spec, key_of(shared, spec)), worker_([this] {
        cancelled_.store(true, std::memory_order_release);
        control_.mark_failed();
      }) {
  for (std::uint32_t m = 0; m < control_.size(); ++m) {
    outboxes_.emplace_back(control_.pair(control_.rank(), m));
    inboxes_.emplace_back(control_.pair(m, control_.rank()));
  }
}

void Group::check() {
  if (worker_.failed()) {
    throw TransportError(*worker_.failure());
  }
}

std::shared_ptr<std::byte> Group::memory_of(std::uint32_t member, const MemoryRef& ref) {
  try {
    return shared_.peers.resolve(ref);
  } catch (const TransportError&) {
    if (control_.is_gone(member)) {
      throw control_.gone(member);
    }
    throw;
  }
}

Agreed Group::agree(const OpSpec& op, const Offer& offer, std::int64_t deadline) {
  tell(op, offer);
  meet(op, deadline);
  Agreed agreed;
  std::optional<std::string> difference = own_difference(op);
  if (!difference) {
    agreed = hear(op);
  }
  if (control_.rank() == 0) {
    std::byte* const place = control_.deal_place(difference ? std::nullopt : std::optional(agreed.place_bytes()));
    if (place != nullptr) {
      agreed.clear(place);
    }
  }
  control_.member(control_.rank()).disagrees = difference ? 1 : 0;
  meet(op, deadline);
  agreed.place = control_.take_place();
  if (!difference) {
    difference = difference_of_others(op);
  }
  // Nobody changes what the others have yet to read.
  meet(op, deadline);
  if (difference) {
    throw TransportError(SR_INVALID, *difference);
  }
  return agreed;
}

void Group::meet(const OpSpec& op, std::int64_t deadline) {
  const std::uint64_t meeting = ++meetings_;
  control_.preparing(control_.rank()).reached.store(meeting);
  control_.ring();
  const auto is_there = [&](std::uint32_t m) { return control_.preparing(m).reached.load() >= meeting; };
  const auto all_there = [&] {
    for (std::uint32_t m = 0; m < control_.size(); ++m) {
      if (!is_there(m)) {
        return false;
      }
    }
    return true;
  };
  Control::NextLook next_look = 0;
  if (control_.wait(deadline, next_look, cancelled_, Control::everyone, all_there)) {
    return;
  }
  std::vector<std::uint32_t> missing;
  for (std::uint32_t m = 0; m < control_.size(); ++m) {
    if (!is_there(m)) {
      missing.push_back(m);
    }
  }
  throw control_.past_deadline("preparing " + shardrun::sdk::describe(op) + ": past the deadline", missing);
}

void Group::tell(const OpSpec& op, const Offer& offer) {
  const std::uint32_t rank = control_.rank();
  Member& self = control_.member(rank);
  self.send = offer.send;
  self.recv = offer.recv;
  self.is_mappable = offer.is_mappable ? 1 : 0;
  self.sent_bytes = offer.sent_bytes;
  self.block_bytes = offer.block_bytes;
  for (std::uint32_t to = 0; to < control_.size(); ++to) {
    const std::uint64_t offset = op.opcode == SR_OP_ALL_TO_ALLV ? shardrun::sdk::send_block(op, rank, to).offset : 0;
    control_.told(rank, to) = {shardrun::sdk::claim_of(op, rank, to), offset};
  }
}

Agreed Group::hear(const OpSpec& op) {
  Agreed agreed;
  choose_way(op, agreed);
  for (std::uint32_t m = 0; m < control_.size(); ++m) {
    const Member& member = control_.member(m);
    const bool is_mapped = agreed.in_place && m != control_.rank();
    agreed.sends.push_back(is_mapped ? memory_of(m, member.send) : nullptr);
    agreed.recvs.push_back(is_mapped ? memory_of(m, member.recv) : nullptr);
    if (op.opcode == SR_OP_ALL_TO_ALLV) {
      agreed.offsets.push_back(control_.told(m, control_.rank()).offset);
    }
  }
  return agreed;
}

/// From what all members told, so that all choose alike.
void Group::choose_way(const OpSpec& op, Agreed& agreed) const {
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
  const bool is_mail = most <= most_mail_bytes;
  agreed.in_place = are_mappable && !is_mail;
  if (agreed.in_place) {
    return;
  }
  const std::uint64_t blocks = blocks_of(op.opcode, control_.size());
  // A multiple of every element's size, as that of what is sent is.
  const std::uint64_t share_of_slot = std::max<std::uint64_t>(64, slot_bytes / blocks / 64 * 64);
  const bool is_one_piece = is_mail || block <= share_of_slot;
  agreed.piece_bytes = is_one_piece ? (block + 7) / 8 * 8 : share_of_slot;
  agreed.slot_bytes = blocks * agreed.piece_bytes;
  if (agreed.slot_bytes > sizeof(Progress) - sizeof(std::uint64_t)) {
    agreed.piece_bytes = align_up(agreed.piece_bytes);
    agreed.slot_bytes = blocks * agreed.piece_bytes;
  }
  agreed.rounds = is_one_piece ? 1 : static_cast<std::uint32_t>((block + agreed.piece_bytes - 1) / agreed.piece_bytes);
  agreed.turns = 2;
  if (is_mail && shardrun::sdk::find_opcode(op.opcode)->has_root) {
    // One who only sends runs ahead of who reads, and looks seldom how far they are.
    agreed.turns = static_cast<std::uint32_t>(std::clamp<std::uint64_t>(most_ahead_bytes / agreed.stride(), 4, 64));
  } else if (is_mail) {
    agreed.turns = 4;
  }
}

std::optional<std::string> Group::own_difference(const OpSpec& op) const {
  for (std::uint32_t m = 0; m < control_.size(); ++m) {
    if (m == control_.rank()) {
      continue;
    }
    const Told& told = control_.told(m, control_.rank());
    if (auto why = shardrun::sdk::mismatch(op, control_.rank(), m, told.claim)) {
      return why;
    }
  }
  return std::nullopt;
}

std::optional<std::string> Group::difference_of_others(const OpSpec& op) const {
  for (std::uint32_t m = 0; m < control_.size(); ++m) {
    if (control_.member(m).disagrees != 0) {
      return control_.name_of(m) + " and another member do not mean the same op; this member has " +
             shardrun::sdk::describe(op);
    }
  }
  return std::nullopt;
}

std::unique_ptr<shardrun::sdk::Op> Group::prepare(std::span<const OpSpec> ops, std::int64_t deadline) {
  check();
  try {
    return shardrun::sdk::find_opcode(ops[0].opcode)->collective ? make_collective(*this, ops[0], deadline)
                                                                 : make_batch(*this, ops);
  } catch (const TransportError& error) {
    // A mismatch is the callers' mistake and leaves the group as it was; all else is the group's end.
    if (error.status() != SR_INVALID) {
      fail(error);
    }
    throw;
  } catch (const std::exception& error) {
    fail({SR_INTERNAL, error.what()});
    throw;
  }
}

}  // namespace shm
