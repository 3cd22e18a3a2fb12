#include "transports/chaos/group.h"

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstddef>
#include <cstring>
#include <memory>
#include <sstream>
#include <utility>

#include "transports/chaos/op.h"

namespace shardrun::chaos_transport {
namespace {

/// When to retry a group whose lock is held by a caller's thread.
constexpr std::chrono::milliseconds retry_interval(1);

/// Copies chosen elements of an array with a stride, byte for byte.
class RawSubset {
 public:
  RawSubset(const sr_op* ops, std::uint32_t stride) : from_(reinterpret_cast<const std::byte*>(ops)), stride_(stride) {}

  void add(std::uint32_t index) {
    const std::byte* const element = from_ + std::size_t{stride_} * index;
    bytes_.insert(bytes_.end(), element, element + stride_);
  }
  [[nodiscard]] const sr_op* data() const noexcept { return reinterpret_cast<const sr_op*>(bytes_.data()); }
  [[nodiscard]] std::uint32_t size() const noexcept { return static_cast<std::uint32_t>(bytes_.size() / stride_); }

 private:
  const std::byte* from_;
  std::uint32_t stride_;
  std::vector<std::byte> bytes_;
};

}  // namespace

FaultInjector::FaultInjector(const Inner& inner, const Faults& faults, std::uint32_t rank, const sdk::Host& log,
                             const sdk::TransportHost& host)
    : inner_(inner), faults_(faults), rank_(rank), log_(log), host_(host), thread_([this] { work(); }) {
  if (faults_.delay_ns != 0) {
    std::ostringstream line;
    line << "rank " << rank_ << " starts every op " << static_cast<double>(faults_.delay_ns) / 1e6 << " ms late";
    warn(line.str());
  }
}

FaultInjector::~FaultInjector() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

std::uint64_t FaultInjector::count(const std::string& what) {
  const std::uint64_t number = ++started_;
  if (faults_.fault == Fault::kill && number == faults_.at_op) {
    warn("kills rank " + std::to_string(rank_) + " at its op " + std::to_string(number) + ", " + what);
    kill(getpid(), SIGKILL);
    for (;;) {
      pause();
    }
  }
  return number;
}

bool FaultInjector::corrupts(std::uint64_t number) noexcept {
  return has_begun(Fault::corrupt, number) && !corrupted_.exchange(true);
}

void FaultInjector::warn_once(const std::string& line) {
  if (!has_logged_.exchange(true)) {
    warn(line);
  }
}

void FaultInjector::warn(const std::string& line) const { log_.warning(line); }

void FaultInjector::warn_if_not_injected() const {
  if (faults_.fault == Fault::none || has_logged_ || corrupted_) {
    return;
  }
  const std::string at_op = "at_op = " + std::to_string(faults_.at_op);
  warn("nothing has happened: rank " + std::to_string(rank_) + " has started " + std::to_string(started_) + " ops, " +
       (started_ < faults_.at_op ? "fewer than " + at_op
        : faults_.fault == Fault::corrupt
            ? "none of which received anything from another rank from " + at_op + " on"
            : "none of which was with rank " + std::to_string(faults_.peer) + " from " + at_op + " on"));
}

void FaultInjector::add(FaultyGroup& group) {
  const std::lock_guard lock(mutex_);
  groups_.push_back(&group);
}

void FaultInjector::remove(FaultyGroup& group) {
  const std::lock_guard lock(mutex_);
  groups_.remove(&group);
}

void FaultInjector::wake() {
  {
    const std::lock_guard lock(mutex_);
    is_woken_ = true;
  }
  changed_.notify_all();
}

void FaultInjector::work() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    is_woken_ = false;
    sdk::Deadline next;
    const sdk::Deadline now = host_.now();
    for (FaultyGroup* const group : groups_) {
      if (group->next_.load() > now) {
        next = std::min(next, group->next_.load());
      } else if (const std::unique_lock held(group->mutex_, std::try_to_lock); held.owns_lock()) {
        next = std::min(next, group->advance(now));
      } else {
        next = std::min(next, now + retry_interval);  // the thread that holds the lock may leave something due
      }
    }
    const auto is_called = [this] { return is_woken_ || stopping_; };
    if (next == sdk::Deadline::never()) {
      changed_.wait(lock, is_called);
    } else {
      changed_.wait_for(lock, next.slice(), is_called);
    }
  }
}

FaultyGroup::FaultyGroup(FaultInjector& injector, const sr_group& group, std::uint64_t handle)
    : injector_(injector),
      handle_(handle),
      rank_(group.rank),
      members_(group.members, group.members + group.member_count) {
  const auto lost = std::find(members_.begin(), members_.end(), injector.faults().peer);
  if (injector.faults().fault == Fault::drop_peer && lost != members_.end()) {
    lost_member_ = static_cast<std::uint32_t>(lost - members_.begin());
  }
  injector_.add(*this);
}

FaultyGroup::~FaultyGroup() { injector_.remove(*this); }

std::optional<sdk::TransportError> FaultyGroup::failure() const {
  const std::lock_guard lock(failure_mutex_);
  return failure_;
}

std::int32_t FaultyGroup::error(sr_error* error) const {
  if (const std::optional<sdk::TransportError> own = failure()) {
    sdk::detail::write_error(error, own->what(), own->awaited());
    return own->status();
  }
  return injector_.inner()(&sr_transport::group_error, handle_, error);
}

std::int32_t FaultyGroup::abort(const char* reason, sr_error* error) {
  {
    const std::lock_guard lock(failure_mutex_);
    if (!failure_) {
      failure_.emplace(SR_ABORTED, reason != nullptr ? reason : "");
    }
  }
  failed_.notify_all();
  return injector_.inner()(&sr_transport::group_abort, handle_, reason, error);
}

void FaultyGroup::fail(const sdk::TransportError& failure) noexcept {
  {
    const std::lock_guard lock(failure_mutex_);
    if (failure_) {
      return;
    }
    failure_ = failure;
  }
  failed_.notify_all();
  sr_error ignored{};
  ignored.struct_size = sizeof(ignored);
  (void)injector_.inner()(&sr_transport::group_abort, handle_, failure.what(), &ignored);
}

void FaultyGroup::sleep(sdk::Deadline until) const {
  std::unique_lock lock(failure_mutex_);
  failed_.wait_for(lock, until.slice(), [this] { return failure_.has_value(); });
}

std::int32_t FaultyGroup::prepare(const sr_op* ops, std::uint32_t count, std::uint32_t stride, std::int64_t deadline,
                                  std::uint64_t* handle, sr_error* error) {
  const std::lock_guard lock(mutex_);
  std::vector<sdk::OpSpec> specs;
  sdk::for_each(ops, count, stride, [&](const sr_op& op) { specs.push_back(sdk::detail::read(op, size())); });
  RawSubset others(ops, stride);
  RawSubset lost(ops, stride);
  for (std::uint32_t i = 0; i < count; ++i) {
    const sdk::OpcodeTraits* const traits = sdk::find_opcode(specs[i].opcode);
    const bool is_message = traits != nullptr && !traits->collective;
    (lost_member_ && (!is_message || specs[i].peer == *lost_member_) ? lost : others).add(i);
  }
  std::uint64_t of_others = 0;
  std::uint64_t of_lost = 0;
  const auto prepare_inner = [&](const RawSubset& part, std::uint64_t& to) {
    return part.size() == 0 ? SR_OK
                            : injector_.inner()(&sr_transport::op_prepare, handle_, part.data(), part.size(), stride,
                                                deadline, &to, error);
  };
  std::int32_t status = prepare_inner(others, of_others);
  if (status == SR_OK) {
    status = prepare_inner(lost, of_lost);
  }
  if (status != SR_OK) {
    if (of_others != 0) {
      (void)injector_.inner()(&sr_transport::op_free, of_others, error);
    }
    return status;
  }
  *handle = sdk::detail::handle_of(std::make_unique<FaultyOp>(*this, std::move(specs), of_others, of_lost));
  return SR_OK;
}

std::int32_t FaultyGroup::destroy(sr_error* error) {
  injector_.remove(*this);
  return injector_.inner()(&sr_transport::group_destroy, handle_, error);
}

sdk::Deadline FaultyGroup::advance(sdk::Deadline now) {
  sdk::Deadline next;
  for (auto each = held_.begin(); each != held_.end();) {
    FaultyOp* const op = *each++;  // the op may leave the list
    next = std::min(next, op->advance(now));
  }
  next_.store(next);
  return next;
}

}  // namespace shardrun::chaos_transport
