#include "group.h"

#include <unistd.h>

#include <utility>

namespace shm {

namespace {

/// A buffer where it lies, if peers can map that.
std::optional<Exposed> in_place(const Shared& shared, const Buffer& buffer, std::uint64_t bytes) {
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
  return Exposed({getpid(), memory.descriptor, memory.inode, offset, bytes}, data);
}

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

std::vector<Exposed> expose(const Shared& shared, std::span<const ToExpose> wanted) {
  std::vector<Exposed> exposed(wanted.size());
  std::vector<std::size_t> copied;
  std::size_t bytes = 0;
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    if (wanted[i].bytes == 0) {
      continue;
    }
    if (auto lies = in_place(shared, *wanted[i].buffer, wanted[i].bytes)) {
      exposed[i] = std::move(*lies);
    } else {
      copied.push_back(i);
      bytes += align_up(wanted[i].bytes);
    }
  }
  if (copied.empty()) {
    return exposed;
  }
  const std::shared_ptr<Mapping> copies = Mapping::create(bytes);
  std::uint64_t offset = 0;
  for (const std::size_t i : copied) {
    exposed[i] = Exposed({getpid(), copies->descriptor(), copies->inode(), offset, wanted[i].bytes},
                         copies->data() + offset, copies);
    offset += align_up(wanted[i].bytes);
  }
  return exposed;
}

Group::Group(Shared& shared, const GroupSpec& spec)
    : shared_(shared), control_(shared.config, spec, key_of(shared, spec)), worker_([this] {
        cancelled_.store(true, std::memory_order_release);
        control_.mark_failed();
      }) {
  for (std::uint32_t m = 0; m < control_.size(); ++m) {
    outboxes_.emplace_back(control_.posts(control_.rank(), m));
    inboxes_.emplace_back(control_.posts(m, control_.rank()));
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
      throw TransportError(SR_PEER_LOST, control_.name_of(member) + " is gone");
    }
    throw;
  }
}

Agreed Group::agree(const OpSpec& op, const Offer& offer, std::int64_t deadline) {
  tell(op, offer);
  meet(op, deadline);
  Agreed agreed;
  agreed.place = control_.take_place();
  std::optional<std::string> difference = own_difference(op);
  if (!difference) {
    hear(op, agreed);
  }
  control_.member(control_.rank()).disagrees = difference ? 1 : 0;
  meet(op, deadline);
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
  if (control_.wait(deadline, cancelled_, Control::everyone, all_there)) {
    return;
  }
  std::string missing;
  for (std::uint32_t m = 0; m < control_.size(); ++m) {
    if (!is_there(m)) {
      missing += (missing.empty() ? "" : ", ") + control_.name_of(m);
    }
  }
  throw TransportError(SR_TIMEOUT,
                       "preparing " + shardrun::sdk::describe(op) + ": past the deadline, waiting for " + missing);
}

void Group::tell(const OpSpec& op, const Offer& offer) {
  const std::uint32_t rank = control_.rank();
  if (rank == 0) {
    control_.deal_place(offer.place_bytes);
  }
  control_.member(rank).send = offer.send;
  control_.member(rank).recv = offer.recv;
  for (std::uint32_t to = 0; to < control_.size(); ++to) {
    const std::uint64_t offset = op.opcode == SR_OP_ALL_TO_ALLV ? shardrun::sdk::send_block(op, rank, to).offset : 0;
    control_.told(rank, to) = {shardrun::sdk::claim_of(op, rank, to), offset};
  }
}

void Group::hear(const OpSpec& op, Agreed& agreed) {
  for (std::uint32_t m = 0; m < control_.size(); ++m) {
    const Member& member = control_.member(m);
    const bool is_other = m != control_.rank();
    agreed.sends.push_back(is_other ? memory_of(m, member.send) : nullptr);
    agreed.recvs.push_back(is_other ? memory_of(m, member.recv) : nullptr);
    if (op.opcode == SR_OP_ALL_TO_ALLV) {
      agreed.offsets.push_back(control_.told(m, control_.rank()).offset);
    }
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
      fail(error.status(), error.what());
    }
    throw;
  }
}

}  // namespace shm
