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

namespace shardrun::chaos {
namespace {

/// How soon a group is looked at again whose own thread is at work in it.
constexpr std::int64_t soon = 1'000'000;

/// Elements of an array that travels with a stride, as they are.
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

Disturbance::Disturbance(const Inner& inner, const Faults& faults, std::uint32_t rank, const sdk::Host& log,
                         const sdk::TransportHost& host)
    : inner_(inner), faults_(faults), rank_(rank), log_(log), host_(host), thread_([this] { work(); }) {
  if (faults_.delay_ns != 0) {
    std::ostringstream line;
    line << "rank " << rank_ << " starts every op " << static_cast<double>(faults_.delay_ns) / 1e6 << " ms late";
    tell(line.str());
  }
}

Disturbance::~Disturbance() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

std::uint64_t Disturbance::count(const std::string& what) {
  const std::uint64_t number = ++started_;
  if (faults_.fault == Fault::kill && number == faults_.at_op) {
    tell("kills rank " + std::to_string(rank_) + " at its op " + std::to_string(number) + ", " + what);
    kill(getpid(), SIGKILL);
    for (;;) {
      pause();
    }
  }
  return number;
}

bool Disturbance::corrupts(std::uint64_t number) noexcept {
  return has_begun(Fault::corrupt, number) && !corrupted_.exchange(true);
}

void Disturbance::tell_once(const std::string& line) {
  if (!told_.exchange(true)) {
    tell(line);
  }
}

void Disturbance::tell(const std::string& line) const { log_.warning(line); }

void Disturbance::tell_if_unstruck() const {
  if (faults_.fault == Fault::none || told_ || corrupted_) {
    return;
  }
  const std::string at_op = "at_op = " + std::to_string(faults_.at_op);
  tell("nothing has happened: rank " + std::to_string(rank_) + " has started " + std::to_string(started_) + " ops, " +
       (started_ < faults_.at_op ? "fewer than " + at_op
        : faults_.fault == Fault::corrupt
            ? "none of which received anything from another rank from " + at_op + " on"
            : "none of which was with rank " + std::to_string(faults_.peer) + " from " + at_op + " on"));
}

void Disturbance::add(DisturbedGroup& group) {
  const std::lock_guard lock(mutex_);
  groups_.push_back(&group);
}

void Disturbance::remove(DisturbedGroup& group) {
  const std::lock_guard lock(mutex_);
  groups_.remove(&group);
}

void Disturbance::wake() {
  {
    const std::lock_guard lock(mutex_);
    woken_ = true;
  }
  changed_.notify_all();
}

void Disturbance::work() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    woken_ = false;
    std::int64_t next = INT64_MAX;
    const std::int64_t now = host_.now();
    for (DisturbedGroup* const group : groups_) {
      if (group->next_.load() > now) {
        next = std::min(next, group->next_.load());
      } else if (const std::unique_lock held(group->mutex_, std::try_to_lock); held.owns_lock()) {
        next = std::min(next, group->attend(now));
      } else {
        next = std::min(next, now + soon);  // whoever has it attends to it too
      }
    }
    const auto is_called = [this] { return woken_ || stopping_; };
    if (next == INT64_MAX) {
      changed_.wait(lock, is_called);
    } else {
      changed_.wait_for(lock, sdk::slice_until(next), is_called);
    }
  }
}

DisturbedGroup::DisturbedGroup(Disturbance& shared, const sr_group& group, std::uint64_t handle)
    : shared_(shared), handle_(handle), rank_(group.rank), members_(group.members, group.members + group.member_count) {
  const auto lost = std::find(members_.begin(), members_.end(), shared.faults().peer);
  if (shared.faults().fault == Fault::drop_peer && lost != members_.end()) {
    lost_member_ = static_cast<std::uint32_t>(lost - members_.begin());
  }
  shared_.add(*this);
}

DisturbedGroup::~DisturbedGroup() { shared_.remove(*this); }

std::optional<sdk::TransportError> DisturbedGroup::failure() const {
  const std::lock_guard lock(failure_mutex_);
  return failure_;
}

std::int32_t DisturbedGroup::error(sr_error* error) const {
  if (const std::optional<sdk::TransportError> own = failure()) {
    sdk::detail::write_error(error, own->what(), own->awaited());
    return own->status();
  }
  return shared_.inner()(&sr_transport::group_error, handle_, error);
}

std::int32_t DisturbedGroup::abort(const char* reason, sr_error* error) {
  {
    const std::lock_guard lock(failure_mutex_);
    if (!failure_) {
      failure_.emplace(SR_ABORTED, reason != nullptr ? reason : "");
    }
  }
  failed_.notify_all();
  return shared_.inner()(&sr_transport::group_abort, handle_, reason, error);
}

void DisturbedGroup::fail(const sdk::TransportError& failure) noexcept {
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
  (void)shared_.inner()(&sr_transport::group_abort, handle_, failure.what(), &ignored);
}

void DisturbedGroup::sleep(std::int64_t until) const {
  std::unique_lock lock(failure_mutex_);
  failed_.wait_for(lock, sdk::slice_until(until), [this] { return failure_.has_value(); });
}

std::int32_t DisturbedGroup::prepare(const sr_op* ops, std::uint32_t count, std::uint32_t stride, std::int64_t deadline,
                                     std::uint64_t* handle, sr_error* error) {
  const std::lock_guard lock(mutex_);
  std::vector<sdk::OpSpec> specs;
  sdk::for_each(ops, count, stride, [&](const sr_op& op) { specs.push_back(sdk::detail::read_op(op, size())); });
  RawSubset others(ops, stride);
  RawSubset lost(ops, stride);
  for (std::uint32_t i = 0; i < count; ++i) {
    const sdk::OpcodeTraits* const traits = sdk::find_opcode(specs[i].opcode);
    const bool is_letter = traits != nullptr && !traits->collective;
    (lost_member_ && (!is_letter || specs[i].peer == *lost_member_) ? lost : others).add(i);
  }
  std::uint64_t of_others = 0;
  std::uint64_t of_lost = 0;
  const auto prepare_inner = [&](const RawSubset& part, std::uint64_t& to) {
    return part.size() == 0 ? SR_OK
                            : shared_.inner()(&sr_transport::op_prepare, handle_, part.data(), part.size(), stride,
                                              deadline, &to, error);
  };
  std::int32_t status = prepare_inner(others, of_others);
  if (status == SR_OK) {
    status = prepare_inner(lost, of_lost);
  }
  if (status != SR_OK) {
    if (of_others != 0) {
      (void)shared_.inner()(&sr_transport::op_free, of_others, error);
    }
    return status;
  }
  *handle = sdk::detail::handle_of(std::make_unique<DisturbedOp>(*this, std::move(specs), of_others, of_lost));
  return SR_OK;
}

std::int32_t DisturbedGroup::destroy(sr_error* error) {
  shared_.remove(*this);
  return shared_.inner()(&sr_transport::group_destroy, handle_, error);
}

std::int64_t DisturbedGroup::attend(std::int64_t now) {
  std::int64_t next = INT64_MAX;
  for (auto each = held_.begin(); each != held_.end();) {
    DisturbedOp* const op = *each++;  // which may leave the list
    next = std::min(next, op->attend(now));
  }
  next_.store(next);
  return next;
}

}  // namespace shardrun::chaos
