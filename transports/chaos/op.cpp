#include "transports/chaos/op.h"

#include <algorithm>
#include <cstddef>
#include <mutex>
#include <utility>

namespace shardrun::chaos_transport {
namespace {

/// How often a wait that can only fail checks whether the job is ending.
constexpr std::chrono::milliseconds abort_check_interval(50);

std::int32_t report(const sdk::TransportError& failure, sr_error* error) noexcept {
  sdk::detail::write_error(error, failure.what(), failure.awaited());
  return failure.status();
}

/// The first block that a member receives from another one in this op. Nothing if there is none, or if this process
/// cannot write the memory.
std::optional<sdk::Block> received(const sdk::OpSpec& op, std::uint32_t rank, std::uint32_t size) {
  const bool is_reached = op.recv && (op.recv->kind == SR_MEMORY_HOST || op.recv->kind == SR_MEMORY_PINNED);
  for (std::uint32_t step = 1; is_reached && step < size; ++step) {
    const sdk::Block block = sdk::recv_block(op, rank, (rank + step) % size);
    if (block.count != 0) {
      return block;
    }
  }
  return std::nullopt;
}

}  // namespace

FaultyOp::FaultyOp(FaultyGroup& group, std::vector<sdk::OpSpec> specs, std::uint64_t others, std::uint64_t lost)
    : group_(group), specs_(std::move(specs)), others_(others), lost_(lost) {}

std::int32_t FaultyOp::start(void* queue, sdk::Deadline deadline, sr_error* error) {
  FaultInjector& injector = group_.injector();
  const std::uint64_t number = injector.count(what());
  const std::string here =
      "rank " + std::to_string(injector.rank()) + ", from its op " + std::to_string(number) + " on, " + what() + ": ";
  bool is_held = false;
  {
    const std::lock_guard lock(group_.mutex_);
    if (const auto failure = group_.failure()) {
      return report(*failure, error);
    }
    queue_ = queue;
    deadline_ = deadline;
    if (injector.has_begun(Fault::stall, number)) {
      injector.warn_once(here + "starts nothing any more");
      state_ = State::stalled;
      return SR_OK;
    }
    loses_ = lost_ != 0 && injector.has_begun(Fault::drop_peer, number);
    if (loses_) {
      injector.warn_once(here + "loses what goes to and comes from rank " + std::to_string(injector.faults().peer));
    }
    const bool receives = std::any_of(specs_.begin(), specs_.end(), [&](const sdk::OpSpec& op) {
      return received(op, group_.rank(), group_.size()).has_value();
    });
    corrupts_ = receives && injector.corrupts(number);
    due_ = injector.host().now() + std::chrono::nanoseconds(injector.faults().delay_ns);
    state_ = injector.faults().delay_ns > 0 ? State::late : State::started;
    if (state_ == State::started) {
      const std::int32_t status = start_inner(error);
      if (status != SR_OK) {
        return status;
      }
    }
    is_held = state_ == State::late || (loses_ && awaits_lost());
    if (is_held) {
      hold();
    }
  }
  if (is_held) {
    injector.wake();
  }
  return SR_OK;
}

std::int32_t FaultyOp::test(sr_error* error) {
  const std::lock_guard lock(group_.mutex_);
  const sdk::Deadline now = group_.injector().host().now();
  if (group_.next_.load() <= now) {
    group_.advance(now);
  }
  if (state_ == State::complete) {
    return SR_OK;
  }
  if (const auto failure = group_.failure()) {
    return report(*failure, error);
  }
  return state_ == State::late || state_ == State::stalled ? SR_PENDING : conclude(test_started(error), error);
}

std::int32_t FaultyOp::wait(sdk::Deadline deadline, sr_error* error) {
  const std::lock_guard lock(group_.mutex_);
  const sdk::TransportHost& host = group_.injector().host();
  for (;;) {
    const sdk::Deadline now = host.now();
    if (group_.next_.load() <= now) {
      group_.advance(now);
    }
    if (state_ == State::complete) {
      return SR_OK;
    }
    if (const auto failure = group_.failure()) {
      return report(*failure, error);
    }
    const sdk::Deadline until = std::min(deadline, group_.next_.load());
    const std::int32_t status =
        state_ == State::late || state_ == State::stalled ? SR_PENDING : conclude(wait_started(until, error), error);
    if (status != SR_PENDING) {
      return status;
    }
    if (now >= deadline) {
      sdk::detail::write_error(error, "the deadline of the wait passed; the op goes on");
      return SR_TIMEOUT;
    }
    if (host.aborted()) {
      group_.fail({SR_ABORTED, what() + ": the job ends"});
    }
    if (waits_here()) {
      group_.sleep(std::min(until, now + abort_check_interval));
    }
  }
}

std::int32_t FaultyOp::free(sr_error* error) {
  std::int32_t status = SR_OK;
  {
    const std::lock_guard lock(group_.mutex_);
    unhold();
    for (const std::uint64_t part : {others_, lost_}) {
      if (part != 0) {
        const std::int32_t freed = group_.injector().inner()(&sr_transport::op_free, part, error);
        status = status == SR_OK ? freed : status;
      }
    }
  }
  delete this;
  return status;
}

sdk::Deadline FaultyOp::advance(sdk::Deadline now) {
  if (now >= deadline_) {
    if (state_ == State::late) {
      group_.fail({SR_TIMEOUT, what() + " is past its deadline, before it was to start"});
    } else {
      const std::uint32_t peer = group_.injector().faults().peer;
      group_.fail({SR_TIMEOUT,
                   what() + " is past its deadline, waiting for member " + std::to_string(*group_.lost_member()) +
                       " (rank " + std::to_string(peer) + ")",
                   peer});
    }
    unhold();
    return sdk::Deadline::never();
  }
  if (state_ == State::late && now < due_) {
    return std::min(due_, deadline_);
  }
  if (state_ == State::late) {
    state_ = State::started;
    sr_error error{};
    error.struct_size = sizeof(error);
    if (const std::int32_t status = start_inner(&error); status != SR_OK) {
      group_.fail({status, error});
    }
  }
  if (loses_ && awaits_lost()) {
    return deadline_;
  }
  unhold();
  return sdk::Deadline::never();
}

std::int32_t FaultyOp::start_inner(sr_error* error) {
  begun_ = sdk::monotonic_now();
  for (const std::uint64_t part : begun()) {
    const std::int32_t status =
        group_.injector().inner()(&sr_transport::op_start, part, queue_, deadline_.to_border(), error);
    if (status != SR_OK) {
      return status;
    }
  }
  return SR_OK;
}

std::int32_t FaultyOp::test_started(sr_error* error) {
  for (const std::uint64_t part : begun()) {
    const std::int32_t status = group_.injector().inner()(&sr_transport::op_test, part, error);
    if (status != SR_OK) {
      return status;
    }
  }
  return loses_ && awaits_lost() ? SR_PENDING : SR_OK;
}

std::int32_t FaultyOp::wait_started(sdk::Deadline until, sr_error* error) {
  // This transport's clock stands still during a wait inside the inner transport, so such waits are short.
  until = std::min(until, group_.injector().host().now() + sdk::longest_gap / 2);
  for (const std::uint64_t part : begun()) {
    std::int32_t status = group_.injector().inner()(&sr_transport::op_wait, part, until.to_border(), error);
    if (status == SR_TIMEOUT) {
      // A wait that timed out has the same status as an op past its deadline, but leaves the op pending.
      status = group_.injector().inner()(&sr_transport::op_test, part, error);
    }
    if (status != SR_OK) {
      return status;
    }
  }
  return loses_ && awaits_lost() ? SR_PENDING : SR_OK;
}

/// If the inner transport ended an op because this group failed, replaces the error by the group's failure.
std::int32_t FaultyOp::conclude(std::int32_t status, sr_error* error) {
  if (status == SR_PENDING) {
    return status;
  }
  if (status != SR_OK) {
    const auto failure = group_.failure();
    return failure ? report(*failure, error) : status;
  }
  if (corrupts_) {
    corrupt();
    corrupts_ = false;
  }
  state_ = State::complete;
  ended_ = sdk::monotonic_now();
  return SR_OK;
}

sdk::OpTimes FaultyOp::times() const {
  sdk::OpTimes sum = {.begun = begun_};
  for (const std::uint64_t part : begun()) {
    sr_op_times times{};
    times.struct_size = sizeof(times);
    sr_error error{};
    error.struct_size = sizeof(error);
    const sr_transport& inner = *group_.injector().inner().functions;
    const bool is_known = SR_HAS(&inner, sr_transport, op_times) && inner.op_times != nullptr &&
                          group_.injector().inner()(&sr_transport::op_times, part, &times, &error) == SR_OK;
    const sdk::OpTimes known = is_known ? sdk::detail::read(times) : sdk::OpTimes{.ended = ended_};
    sum.ended = std::max(sum.ended, known.ended);
    sum.starved += known.starved;
    sum.yielded += known.yielded;
  }
  return sum;
}

bool FaultyOp::awaits_lost() const {
  return std::any_of(specs_.begin(), specs_.end(), [&](const sdk::OpSpec& op) {
    return op.opcode != SR_OP_SEND && (op.opcode != SR_OP_RECV || op.peer == *group_.lost_member());
  });
}

bool FaultyOp::waits_here() const {
  return state_ == State::late || state_ == State::stalled || (loses_ && awaits_lost());
}

void FaultyOp::hold() {
  group_.held_.push_back(this);
  const sdk::Deadline next = state_ == State::late ? std::min(due_, deadline_) : deadline_;
  group_.next_.store(std::min(group_.next_.load(), next));
}

void FaultyOp::unhold() { group_.held_.remove(this); }

/// Flips the lowest bit of an element's highest byte, which changes the number's magnitude. Takes the first element
/// that is not zero, from the middle of the received block on.
void FaultyOp::corrupt() {
  for (const sdk::OpSpec& op : specs_) {
    const auto block = received(op, group_.rank(), group_.size());
    if (!block) {
      continue;
    }
    const std::uint64_t size = sdk::dtype_size(op.dtype);
    auto* const first = static_cast<unsigned char*>(op.recv->data) + block->offset * size;
    const auto is_zero = [&](std::uint64_t index) {
      return std::all_of(first + index * size, first + (index + 1) * size,
                         [](unsigned char byte) { return byte == 0; });
    };
    std::uint64_t index = block->count / 2;
    for (std::uint64_t i = 0; i < block->count && is_zero(index); ++i) {
      index = (index + 1) % block->count;
    }
    first[index * size + size - 1] ^= 1U;
    group_.injector().warn("rank " + std::to_string(group_.injector().rank()) + " flips a bit of element " +
                           std::to_string(block->offset + index) + " of what it received by " + sdk::describe(op));
    return;
  }
}

std::vector<std::uint64_t> FaultyOp::begun() const {
  std::vector<std::uint64_t> parts;
  if (others_ != 0) {
    parts.push_back(others_);
  }
  if (lost_ != 0 && !loses_) {
    parts.push_back(lost_);
  }
  return parts;
}

}  // namespace shardrun::chaos_transport
