#include "transports/nccl/group.h"

#include <utility>

namespace shardrun::nccl_transport {

using sdk::TransportError;

namespace {

constexpr std::chrono::seconds max_end_wait(10);

}  // namespace

Launch::Launch(NcclGroup& group, std::vector<Stage> stages, std::string what, std::optional<std::uint32_t> peer)
    : group_(group),
      stages_(std::move(stages)),
      what_(std::move(what)),
      peer_(peer),
      wire_bytes_(wire_bytes_of(stages_, group.spec_.rank, group.spec_.size())),
      event_(make_event(group.device_.cuda())) {
  group_.launches_.push_back(this);
}

Launch::~Launch() {
  std::erase(group_.launches_, this);
  group_.last_ = group_.last_ == this ? nullptr : group_.last_;
}

void Launch::await_end(std::unique_lock<std::mutex>& lock) {
  const sdk::Deadline latest = sdk::Deadline::now() + max_end_wait;
  for (std::uint32_t round = 0; !has_ended(); ++round) {
    if (latest.passed()) {
      group_.state_.log.warning(what_ + " is freed, and the device has not ended it");
      break;
    }
    lock.unlock();  // so that abort() can end the launch if a member is missing
    pause_polling(round);
    lock.lock();
  }
}

bool Launch::has_ended() {
  const Cuda& cuda = group_.device_.cuda();
  if (state_ == State::launching) {
    try {
      group_.throw_failure();
      (void)advance();
    } catch (const TransportError&) {
      (void)cuda.event_record(event_->get(), stream_);  // marks the end of the part that the stream has
      state_ = State::running;
    }
  }
  return state_ == State::idle || state_ == State::complete ||
         (state_ == State::running && cuda.event_query(event_->get()) != CUDA_ERROR_NOT_READY);
}

template <class Act>
void Launch::or_fail(const Act& act) {
  try {
    act();
  } catch (const TransportError& error) {
    group_.fail(error.status(), error.what());
  }
}

void Launch::begin(sdk::Deadline deadline) {
  timeout_.reset();
  launch(group_.stream_->get(), deadline);
}

void Launch::begin_after(CUstream queue, sdk::Deadline deadline) {
  or_fail([&] {
    mark_turn(queue);
    const Cuda& cuda = group_.device_.cuda();
    check(cuda, cuda.stream_wait_event(group_.stream_->get(), turn_->get(), CU_EVENT_WAIT_DEFAULT), what_);
  });
  begin(deadline);
}

void Launch::begin_in(CUstream queue, std::chrono::nanoseconds timeout) {
  or_fail([&] { mark_turn(queue); });
  timeout_ = timeout;
  launch(queue, sdk::Deadline::never());
}

void Launch::join(CUstream queue) {
  if (state_ == State::running && queue != stream_) {
    const Cuda& cuda = group_.device_.cuda();
    or_fail([&] { check(cuda, cuda.stream_wait_event(queue, event_->get(), CU_EVENT_WAIT_DEFAULT), what_); });
  }
}

void Launch::mark_turn(CUstream queue) {
  const Cuda& cuda = group_.device_.cuda();
  if (turn_ == nullptr) {
    turn_ = make_event(cuda);
  }
  check(cuda, cuda.event_record(turn_->get(), queue), what_);
}

void Launch::launch(CUstream stream, sdk::Deadline deadline) {
  if (group_.last_ != nullptr && group_.last_ != this) {
    group_.last_->join(stream);  // because a group's ops begin in one order, whatever their queues
  }
  stream_ = stream;
  deadline_ = deadline;
  group_.last_ = this;
  next_ = 0;
  state_ = State::launching;
  issue();
  group_.wire_bytes_ += wire_bytes_;
}

/// Gives stages to the stream until NCCL delays one. Later stages must then wait until NCCL has given that one.
void Launch::issue() {
  while (next_ < stages_.size()) {
    const Stage& stage = stages_[next_];
    ncclResult_t result = ncclSuccess;
    if (stage.kernel) {
      or_fail([&] { group_.kernels_.launch(*stage.kernel, stream_, what_); });
    } else {
      result = group_.communicator_->launch(stage.calls, stream_);
    }
    if (result != ncclSuccess && result != ncclInProgress) {
      group_.fail_by(result, what_, peer_);
    }
    ++next_;
    if (result == ncclInProgress) {
      return;
    }
  }
  record();
}

void Launch::record() {
  const Cuda& cuda = group_.device_.cuda();
  or_fail([&] { check(cuda, cuda.event_record(event_->get(), stream_), what_); });
  state_ = State::running;
}

Launch::State Launch::advance() {
  if (state_ == State::idle || state_ == State::complete) {
    return state_;
  }
  // NCCL's state is read after the event, so an error that has ended the op is in the state.
  const CUresult ended =
      state_ == State::running ? group_.device_.cuda().event_query(event_->get()) : CUDA_ERROR_NOT_READY;
  const ncclResult_t result = group_.communicator_->state();
  if (result != ncclSuccess && result != ncclInProgress) {
    group_.fail_by(result, what_, peer_);
  }
  if (ended == CUDA_SUCCESS) {
    state_ = State::complete;
    return state_;
  }
  if (ended != CUDA_ERROR_NOT_READY) {
    or_fail([&] { check(group_.device_.cuda(), ended, what_ + ": GPU " + std::to_string(group_.device_.ordinal())); });
  }
  if (state_ == State::launching && result == ncclSuccess) {
    issue();
  }
  if (timeout_ && group_.device_.cuda().event_query(turn_->get()) == CUDA_SUCCESS) {
    deadline_ = sdk::Deadline::now() + *timeout_;
    timeout_.reset();
  }
  if (deadline_.passed()) {
    fail_late();
  }
  return state_;
}

void Launch::fail_late() {
  const std::string late = what_ + " is past its deadline";
  if (peer_) {
    group_.fail(SR_TIMEOUT, late + ", waiting for " + group_.spec_.name_of(*peer_), group_.spec_.members[*peer_]);
  }
  group_.fail(SR_TIMEOUT, late + "; NCCL does not say which of the group's " + std::to_string(group_.spec_.size()) +
                              " members it lacks");
}

}  // namespace shardrun::nccl_transport
