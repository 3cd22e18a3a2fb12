#include "group.h"

#include <unistd.h>

#include <cstring>

namespace shm {

Exposed::Exposed(const Shared& shared, const Buffer& buffer, std::uint64_t bytes) {
  if (bytes == 0) {
    return;
  }
  const auto registered = shared.registrations.find(buffer.registration);
  if (registered != shared.registrations.end() && registered->second.descriptor >= 0) {
    const Registration& memory = registered->second;
    data_ = static_cast<std::byte*>(buffer.data);
    const auto offset = static_cast<std::uint64_t>(data_ - memory.data);
    if (data_ >= memory.data && offset + bytes <= memory.bytes) {
      ref_ = {getpid(), memory.descriptor, memory.inode, memory.offset + offset, bytes};
      return;
    }
  }
  copy_ = Mapping::create(bytes);
  data_ = copy_->data();
  ref_ = {getpid(), copy_->descriptor(), copy_->inode(), 0, bytes};
}

namespace {

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

Group::Group(Shared& shared, const GroupSpec& spec)
    : shared_(shared), control_(shared.config, spec, key_of(shared, spec)), worker_([this] {
        cancelled_.store(true, std::memory_order_release);
        control_.mark_failed();
      }) {}

void Group::check() {
  if (worker_.failed()) {
    throw TransportError(*worker_.failure());
  }
}

void Group::meet(std::int64_t deadline, const std::string& what) {
  const std::uint64_t meeting = ++meetings_;
  control_.preparing(control_.rank()).reached.store(meeting);
  control_.ring();
  std::string missing;
  const auto all_there = [&] {
    for (std::uint32_t m = 0; m < control_.size(); ++m) {
      if (control_.preparing(m).reached.load() < meeting) {
        return false;
      }
    }
    return true;
  };
  if (!control_.wait(deadline, cancelled_, Control::everyone, all_there)) {
    for (std::uint32_t m = 0; m < control_.size(); ++m) {
      if (control_.preparing(m).reached.load() < meeting) {
        missing += (missing.empty() ? "" : ", ") + control_.name_of(m);
      }
    }
    throw TransportError(SR_TIMEOUT, "preparing " + what + ": past the deadline, waiting for " + missing);
  }
}

void Group::compare(const OpSpec& op, std::int64_t deadline) {
  std::optional<std::string> found;
  for (std::uint32_t m = 0; m < control_.size() && !found; ++m) {
    if (m != control_.rank()) {
      found = shardrun::sdk::mismatch(op, control_.rank(), m, control_.claim(m, control_.rank()));
    }
  }
  Member& mine = control_.member(control_.rank());
  mine.disagrees = found ? 1 : 0;
  meet(deadline, shardrun::sdk::describe(op));
  for (std::uint32_t m = 0; m < control_.size() && !found; ++m) {
    if (control_.member(m).disagrees != 0) {
      found = control_.name_of(m) + " and another member do not mean the same op; this member has " +
              shardrun::sdk::describe(op);
    }
  }
  // Nobody changes what the others have yet to read.
  meet(deadline, shardrun::sdk::describe(op));
  if (found) {
    throw TransportError(SR_INVALID, *found);
  }
}

void Group::agree(const OpSpec& op, const MemoryRef& send, const MemoryRef& recv, std::vector<std::byte*>& sends,
                  std::vector<std::byte*>& recvs, std::int64_t deadline) {
  Member& mine = control_.member(control_.rank());
  mine.send = send;
  mine.recv = recv;
  for (std::uint32_t to = 0; to < control_.size(); ++to) {
    control_.claim(control_.rank(), to) = shardrun::sdk::claim_of(op, control_.rank(), to);
  }
  meet(deadline, shardrun::sdk::describe(op));
  std::vector<MemoryRef> send_refs;
  std::vector<MemoryRef> recv_refs;
  for (std::uint32_t m = 0; m < control_.size(); ++m) {
    send_refs.push_back(control_.member(m).send);
    recv_refs.push_back(control_.member(m).recv);
  }
  compare(op, deadline);
  for (std::uint32_t m = 0; m < control_.size(); ++m) {
    sends.push_back(m == control_.rank() ? nullptr : shared_.peers.resolve(send_refs[m]));
    recvs.push_back(m == control_.rank() ? nullptr : shared_.peers.resolve(recv_refs[m]));
  }
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
