#include "transports/mpi/group.h"

#include <shardrun/sdk/agreement.hpp>
#include <shardrun/sdk/worker.hpp>

#include <algorithm>
#include <utility>
#include <vector>

namespace shardrun::mpi_transport {

using sdk::OpSpec;
using sdk::TransportError;

MpiGroup::MpiGroup(const sdk::Config& config, const sdk::GroupSpec& spec, const std::string& key, std::size_t lanes,
                   std::atomic<std::uint64_t>& wire_bytes)
    : spec_(spec),
      host_(config.host),
      wire_bytes_(wire_bytes),
      lanes_(lanes, MPI_COMM_NULL),
      free_lanes_(lanes, 1),
      roll_call_(config.host, key, spec.rank, spec.size()) {
  meet();
  connect();
}

MpiGroup::~MpiGroup() {
  Library& library = Library::instance();
  const auto locked = library.lock();
  for (MPI_Comm& lane : lanes_) {
    library.free_comm(lane);
  }
  shared_lane_.reset();
  library.free_comm(comm_);
}

/// Making a communicator cannot be ended from outside: nobody begins before all are there. Messages between two ranks
/// arrive in order, and groups that share members are made in one order.
void MpiGroup::meet() {
  const std::uint32_t n = size();
  const std::string what = "connecting the group '" + spec_.name + "'";
  std::uint8_t given = 0;
  std::vector<std::uint8_t> taken(n);
  for (std::uint32_t distance = 1; distance < n; distance *= 2) {
    const std::uint32_t to = (rank() + distance) % n;
    const std::uint32_t from = (rank() + n - distance) % n;
    Requests requests(what);
    {
      Library& library = Library::instance();
      const auto locked = library.lock();
      library.require_going();
      Library::check(MPI_Irecv(&taken[from], 1, MPI_BYTE, static_cast<int>(spec_.members[from]), agreement_tag,
                               library.world(), &requests.add(peer(from))),
                     "MPI_Irecv");
      Library::check(MPI_Isend(&given, 1, MPI_BYTE, static_cast<int>(spec_.members[to]), agreement_tag, library.world(),
                               &requests.add(peer(to))),
                     "MPI_Isend");
    }
    static_cast<void>(wait(requests, {.deadline = spec_.deadline}, INT64_MAX, what));
  }
}

void MpiGroup::connect() {
  Library& library = Library::instance();
  const auto locked = library.lock();
  std::vector<int> ranks(spec_.members.begin(), spec_.members.end());
  MPI_Group world = MPI_GROUP_NULL;
  MPI_Group members = MPI_GROUP_NULL;
  Library::check(MPI_Comm_group(library.world(), &world), "MPI_Comm_group");
  Library::check(MPI_Group_incl(world, static_cast<int>(ranks.size()), ranks.data(), &members), "MPI_Group_incl");
  constexpr int tag = 0;
  Library::check(MPI_Comm_create_group(library.world(), members, tag, &comm_), "MPI_Comm_create_group");
  Library::check(MPI_Comm_set_errhandler(comm_, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  MPI_Group_free(&members);
  MPI_Group_free(&world);
}

std::unique_ptr<sdk::Op> MpiGroup::prepare(std::span<const OpSpec> ops, std::int64_t deadline) {
  check();
  if (!sdk::find_opcode(ops[0].opcode)->collective) {
    return make_batch(*this, ops);
  }
  agree(ops[0], deadline);
  return make_collective(*this, ops[0]);
}

/// MPI would move whatever it is given.
void MpiGroup::agree(const OpSpec& op, std::int64_t deadline) {
  const std::string what = "preparing " + describe(op);
  sdk::Agreement agreement(op, rank(), size());
  for (std::uint32_t round = 0; round < sdk::Agreement::rounds; ++round) {
    Requests requests(what);
    {
      Library& library = Library::instance();
      const auto locked = library.lock();
      library.require_going();
      const int bytes = static_cast<int>(agreement.bytes(round));
      for (std::uint32_t distance = 1; distance < size(); ++distance) {
        const std::uint32_t peer = (rank() + distance) % size();
        Library::check(MPI_Irecv(agreement.takes(round, peer), bytes, MPI_BYTE, static_cast<int>(peer), agreement_tag,
                                 comm_, &requests.add(this->peer(peer))),
                       "MPI_Irecv");
        Library::check(MPI_Isend(agreement.gives(round, peer), bytes, MPI_BYTE, static_cast<int>(peer), agreement_tag,
                                 comm_, &requests.add(this->peer(peer))),
                       "MPI_Isend");
      }
    }
    static_cast<void>(wait(requests, {.deadline = deadline}, INT64_MAX, what));
    agreement.conclude(round);
  }
  if (const auto& why = agreement.difference()) {
    throw TransportError(SR_INVALID, *why);
  }
}

Lane MpiGroup::take_lane() {
  std::vector<std::uint8_t> free = free_lanes_;
  Library::check(MPI_Allreduce(MPI_IN_PLACE, free.data(), static_cast<int>(free.size()), MPI_UINT8_T, MPI_MIN, comm_),
                 "MPI_Allreduce");
  const auto first = std::find(free.begin(), free.end(), 1);
  Lane lane{.place = static_cast<std::size_t>(first - free.begin()), .number = ++collectives_};
  if (first == free.end()) {
    if (!shared_lane_) {
      shared_lane_.emplace(comm_);
    }
    lane.shared = &*shared_lane_;
    lane.comm = shared_lane_->comm();
    return lane;
  }
  MPI_Comm& comm = lanes_[lane.place];
  if (comm == MPI_COMM_NULL) {
    comm = Library::duplicate(comm_);
  }
  lane.comm = comm;
  free_lanes_[lane.place] = 0;
  return lane;
}

void MpiGroup::leave_lane(const Lane& lane) noexcept {
  if (lane.shared == nullptr) {
    free_lanes_[lane.place] = 1;
  }
}

std::optional<TransportError> MpiGroup::error() {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void MpiGroup::fail(const TransportError& failure) noexcept {
  const std::lock_guard lock(mutex_);
  if (!failure_) {
    failure_ = failure;
    failed_.store(true, std::memory_order_release);
  }
}

void MpiGroup::check() {
  if (has_failed()) {
    throw TransportError(*error());
  }
}

sdk::AwaitedRanks MpiGroup::awaited(const Requests& requests, const Term& term) {
  sdk::AwaitedRanks awaited = requests.awaited();
  if (!awaited.first && term.turn != 0) {
    roll_call_.report(term.turn);
    for (const std::uint32_t member : roll_call_.missing(term.turn)) {
      awaited.add(spec_.name_of(member), spec_.members[member]);
    }
  }
  return awaited;
}

void MpiGroup::require_in_time(const Requests& requests, const Term& term, const std::string& what) {
  const std::int64_t now = std::min(term.deadline, term.half) == INT64_MAX ? 0 : sdk::steady_now();
  if (host_.aborted()) {
    fail({SR_ABORTED, "the job ends"});
  } else if (term.deadline != INT64_MAX && now >= term.deadline) {
    const sdk::AwaitedRanks late = awaited(requests, term);
    fail({SR_TIMEOUT, what + " is past its deadline" + (late.first ? ", waiting for " + late.names : ""), late.first});
  } else if (term.turn != 0 && now >= term.half) {
    roll_call_.report(term.turn);
  }
  check();
}

bool MpiGroup::test(Requests& requests, const Term& term, const std::string& what) {
  check();
  try {
    if (requests.test()) {
      return true;
    }
  } catch (const TransportError& error) {
    fail(error.within(what));
    check();
  }
  require_in_time(requests, term, what);
  return false;
}

bool MpiGroup::wait(Requests& requests, const Term& term, std::int64_t until, const std::string& what) {
  check();
  try {
    return requests.wait([&] {
      require_in_time(requests, term, what);
      return until != INT64_MAX && sdk::steady_now() >= until;
    });
  } catch (const TransportError& error) {
    fail(error.within(what));
    check();
    throw;
  }
}

MpiOp::MpiOp(MpiGroup& group, std::string what, bool is_collective)
    : group_(group), what_(std::move(what)), is_collective_(is_collective), requests_(what_) {}

MpiOp::~MpiOp() {
  if (state_ != State::under_way) {
    return;
  }
  try {
    if (requests_.test()) {
      Library::instance().op_ends();
      return;
    }
  } catch (const TransportError&) {
    // It is not complete, whatever else is wrong.
  }
  group_.fail({SR_ABORTED, what_ + " was freed before it was complete"});
  Library::instance().op_ends();
}

void MpiOp::start(void*, std::int64_t deadline) {
  group_.check();
  Library& library = Library::instance();
  term_ = {.deadline = deadline};
  if (is_collective_ && deadline != INT64_MAX) {
    const std::int64_t now = sdk::steady_now();
    term_.half = now + (deadline - now) / 2;
  }
  {
    const auto locked = library.lock();
    library.require_going();
    term_.turn = is_collective_ ? group_.roll_call().next() : 0;
    requests_.clear();
    launch(requests_);
  }
  state_ = State::under_way;
  library.op_begins();
}

void MpiOp::conclude() {
  finish();
  state_ = State::complete;
  Library::instance().op_ends();
}

bool MpiOp::test() {
  if (state_ == State::under_way && group_.test(requests_, term_, what_)) {
    conclude();
  }
  if (state_ == State::idle) {
    group_.check();
  }
  return state_ == State::complete;
}

bool MpiOp::wait(std::int64_t deadline) {
  if (state_ == State::under_way && group_.wait(requests_, term_, deadline, what_)) {
    conclude();
  }
  if (state_ == State::idle) {
    group_.check();
  }
  return state_ == State::complete;
}

}  // namespace shardrun::mpi_transport
