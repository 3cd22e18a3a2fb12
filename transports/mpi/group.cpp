#include "transports/mpi/group.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <exception>
#include <shardrun/sdk/transport/agreement.hpp>
#include <shardrun/sdk/transport/worker.hpp>
#include <thread>
#include <utility>
#include <vector>

namespace shardrun::mpi_transport {
namespace {

/// The time to wait for reports, because members with the same deadline arrive here at slightly different times.
constexpr std::chrono::milliseconds report_wait(400);
constexpr std::chrono::milliseconds report_poll_interval{20};

}  // namespace

Arrivals::Arrivals(const sdk::TransportHost& host, std::string key, std::uint32_t rank, std::uint32_t size)
    : host_(host), key_(std::move(key)), rank_(rank), reports_(size) {}

std::string Arrivals::key_of(std::uint32_t member, std::uint64_t index) const {
  return key_ + "/at/" + std::to_string(member) + "/" + std::to_string(index);
}

void Arrivals::report(std::uint64_t number) noexcept {
  const std::lock_guard locked(mutex_);
  if (reports_[rank_].number >= number) {
    return;
  }
  reports_[rank_].number = number;
  try {
    host_.store_set(key_of(rank_, written_++), std::to_string(number));
  } catch (const std::exception&) {
    // The report is lost, so others will think that this member is late. There is no way to tell them.
  }
}

std::vector<std::uint32_t> Arrivals::missing(std::uint64_t number) noexcept {
  std::vector<std::uint32_t> members;
  try {
    const std::lock_guard locked(mutex_);
    const sdk::Deadline latest = sdk::Deadline::now() + report_wait;
    bool is_over = false;
    do {
      members.clear();
      for (std::uint32_t member = 0; member < reports_.size(); ++member) {
        Report& report = reports_[member];
        while (member != rank_ && report.number < number && !is_over && read_reports(member)) {
        }
        if (member != rank_ && report.number < number && report.is_read) {
          members.push_back(member);
        }
        is_over = latest.passed() || host_.aborted();
      }
      if (!members.empty() && !is_over) {
        std::this_thread::sleep_for(report_poll_interval);
      }
    } while (!members.empty() && !is_over);
  } catch (const std::exception&) {
    members.clear();  // without the store no member can be named
  }
  return members;
}

bool Arrivals::read_reports(std::uint32_t member) {
  Report& report = reports_[member];
  report.is_read = true;
  try {
    const std::string said = host_.store_get(key_of(member, report.read), sdk::Deadline::now());
    std::from_chars(said.data(), said.data() + said.size(), report.number);
    ++report.read;
    return true;
  } catch (const sdk::TransportError& error) {
    if (error.status() != SR_TIMEOUT) {
      throw;
    }
    return false;
  }
}

using sdk::OpSpec;
using sdk::TransportError;

MpiGroup::MpiGroup(const sdk::Config& config, const sdk::GroupSpec& spec, const std::string& key, std::size_t comms,
                   std::atomic<std::uint64_t>& wire_bytes)
    : spec_(spec),
      host_(config.host),
      wire_bytes_(wire_bytes),
      comms_(comms, MPI_COMM_NULL),
      free_comms_(comms, 1),
      arrivals_(config.host, key, spec.rank, spec.size()) {
  await_members();
  connect();
}

MpiGroup::~MpiGroup() {
  Library& library = Library::instance();
  const auto locked = library.lock();
  for (MPI_Comm& comm : comms_) {
    library.free_comm(comm);
  }
  shared_comm_.reset();
  library.free_comm(comm_);
}

/// Waits until all members are here. Making a communicator cannot be interrupted, so nobody begins it before that.
/// One tag serves all groups, because two ranks make their groups in the same order, and messages keep their order.
void MpiGroup::await_members() {
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
      library.require_usable();
      Library::check(MPI_Irecv(&taken[from], 1, MPI_BYTE, static_cast<int>(spec_.members[from]), agreement_tag,
                               library.world(), &requests.add(peer(from))),
                     "MPI_Irecv");
      Library::check(MPI_Isend(&given, 1, MPI_BYTE, static_cast<int>(spec_.members[to]), agreement_tag, library.world(),
                               &requests.add(peer(to))),
                     "MPI_Isend");
    }
    static_cast<void>(wait(requests, {.deadline = spec_.deadline}, sdk::Deadline::never(), what));
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

std::unique_ptr<sdk::Op> MpiGroup::prepare(std::span<const OpSpec> ops, sdk::Deadline deadline) {
  check();
  if (!sdk::find_opcode(ops[0].opcode)->collective) {
    return make_batch(*this, ops);
  }
  agree(ops[0], deadline);
  return make_collective(*this, ops[0]);
}

/// Checks that all members prepare the same op, which MPI itself does not check.
void MpiGroup::agree(const OpSpec& op, sdk::Deadline deadline) {
  const std::string what = "preparing " + describe(op);
  sdk::Agreement agreement(op, rank(), size());
  for (std::uint32_t round = 0; round < sdk::Agreement::rounds; ++round) {
    Requests requests(what);
    {
      Library& library = Library::instance();
      const auto locked = library.lock();
      library.require_usable();
      const int bytes = static_cast<int>(agreement.bytes(round));
      for (std::uint32_t distance = 1; distance < size(); ++distance) {
        const std::uint32_t peer = (rank() + distance) % size();
        Library::check(MPI_Irecv(agreement.incoming(round, peer), bytes, MPI_BYTE, static_cast<int>(peer),
                                 agreement_tag, comm_, &requests.add(this->peer(peer))),
                       "MPI_Irecv");
        Library::check(MPI_Isend(agreement.outgoing(round, peer), bytes, MPI_BYTE, static_cast<int>(peer),
                                 agreement_tag, comm_, &requests.add(this->peer(peer))),
                       "MPI_Isend");
      }
    }
    static_cast<void>(wait(requests, {.deadline = deadline}, sdk::Deadline::never(), what));
    agreement.conclude(round);
  }
  if (const auto& why = agreement.difference()) {
    throw TransportError(SR_INVALID, *why);
  }
}

CollectiveComm MpiGroup::acquire_comm() {
  std::vector<std::uint8_t> free = free_comms_;
  Library::check(MPI_Allreduce(MPI_IN_PLACE, free.data(), static_cast<int>(free.size()), MPI_UINT8_T, MPI_MIN, comm_),
                 "MPI_Allreduce");
  const auto first = std::find(free.begin(), free.end(), 1);
  CollectiveComm acquired{.index = static_cast<std::size_t>(first - free.begin()), .number = ++collectives_};
  if (first == free.end()) {
    if (!shared_comm_) {
      shared_comm_.emplace(comm_);
    }
    acquired.shared = &*shared_comm_;
    acquired.comm = shared_comm_->comm();
    return acquired;
  }
  MPI_Comm& comm = comms_[acquired.index];
  if (comm == MPI_COMM_NULL) {
    comm = Library::duplicate(comm_);
  }
  acquired.comm = comm;
  free_comms_[acquired.index] = 0;
  return acquired;
}

void MpiGroup::release_comm(const CollectiveComm& comm) noexcept {
  if (comm.shared == nullptr) {
    free_comms_[comm.index] = 1;
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

sdk::AwaitedRanks MpiGroup::awaited(const Requests& requests, const TimeLimit& limit) {
  sdk::AwaitedRanks awaited = requests.awaited();
  if (!awaited.first && limit.number != 0) {
    arrivals_.report(limit.number);
    for (const std::uint32_t member : arrivals_.missing(limit.number)) {
      awaited.add(spec_.name_of(member), spec_.members[member]);
    }
  }
  return awaited;
}

void MpiGroup::require_in_time(const Requests& requests, const TimeLimit& limit, const std::string& what) {
  if (host_.aborted()) {
    fail({SR_ABORTED, "the job ends"});
  } else if (limit.deadline.passed()) {
    const sdk::AwaitedRanks late = awaited(requests, limit);
    fail({SR_TIMEOUT, what + " is past its deadline" + (late.first ? ", waiting for " + late.names : ""), late.first});
  } else if (limit.number != 0 && limit.report_at.passed()) {
    arrivals_.report(limit.number);
  }
  check();
}

bool MpiGroup::test(Requests& requests, const TimeLimit& limit, const std::string& what) {
  check();
  try {
    if (requests.test()) {
      return true;
    }
  } catch (const TransportError& error) {
    fail(error.within(what));
    check();
  }
  require_in_time(requests, limit, what);
  return false;
}

bool MpiGroup::wait(Requests& requests, const TimeLimit& limit, sdk::Deadline until, const std::string& what) {
  check();
  try {
    return requests.wait([&] {
      require_in_time(requests, limit, what);
      return until.passed();
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
  if (state_ != State::in_flight) {
    return;
  }
  try {
    if (requests_.test()) {
      Library::instance().op_ends();
      return;
    }
  } catch (const TransportError&) {
    // MPI's error is ignored. The op is not complete, and the following failure says so.
  }
  group_.fail({SR_ABORTED, what_ + " was freed before it was complete"});
  Library::instance().op_ends();
}

void MpiOp::start(void*, sdk::Deadline deadline) {
  group_.check();
  Library& library = Library::instance();
  limit_ = {.deadline = deadline};
  if (is_collective_ && deadline != sdk::Deadline::never()) {
    limit_.report_at = sdk::Deadline::now() + deadline.left() / 2;
  }
  {
    const auto locked = library.lock();
    library.require_usable();
    limit_.number = is_collective_ ? group_.arrivals().next() : 0;
    requests_.clear();
    launch(requests_);
  }
  state_ = State::in_flight;
  library.op_begins();
}

void MpiOp::conclude() {
  finish();
  state_ = State::complete;
  Library::instance().op_ends();
}

bool MpiOp::test() {
  if (state_ == State::in_flight && group_.test(requests_, limit_, what_)) {
    conclude();
  }
  if (state_ == State::idle) {
    group_.check();
  }
  return state_ == State::complete;
}

bool MpiOp::wait(sdk::Deadline deadline) {
  if (state_ == State::in_flight && group_.wait(requests_, limit_, deadline, what_)) {
    conclude();
  }
  if (state_ == State::idle) {
    group_.check();
  }
  return state_ == State::complete;
}

}  // namespace shardrun::mpi_transport
