#include "transports/nccl/group.h"

#include <shardrun/sdk/agreement.hpp>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <utility>

#include "transports/nccl/op.h"

namespace shardrun::nccl {

using sdk::TransportError;

namespace {

constexpr std::size_t word_bytes = 256;  ///< keeps what follows aligned
constexpr std::int64_t max_end_wait = 10'000'000'000;

std::size_t claims_bytes(std::uint32_t members) { return sizeof(sdk::Claim) * members; }

}  // namespace

Watchdog::Watchdog() : thread_([this] { work(); }) {}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

void Watchdog::add(NcclGroup& group) {
  {
    const std::lock_guard lock(mutex_);
    groups_.push_back(&group);
  }
  changed_.notify_all();
}

void Watchdog::remove(NcclGroup& group) {
  const std::lock_guard lock(mutex_);
  groups_.remove(&group);
}

void Watchdog::work() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    if (groups_.empty()) {
      changed_.wait(lock);
      continue;
    }
    for (NcclGroup* const group : groups_) {
      group->watch();
    }
    changed_.wait_for(lock, std::chrono::milliseconds(20));
  }
}

Launch::Launch(NcclGroup& group, std::vector<NcclCall> steps, std::string what)
    : group_(group),
      steps_(std::move(steps)),
      what_(std::move(what)),
      wire_bytes_(wire_bytes_of(steps_, group.spec_.rank, group.spec_.size())),
      event_(make_event(group.device_.cuda())) {}

Launch::~Launch() {
  group_.in_flight_.remove(this);
  group_.last_ = group_.last_ == this ? nullptr : group_.last_;
}

void Launch::await_end(std::unique_lock<std::mutex>& lock) {
  const std::int64_t latest = sdk::steady_now() + max_end_wait;
  for (std::uint32_t round = 0; !has_ended(); ++round) {
    if (sdk::steady_now() >= latest) {
      group_.state_.log.warning(what_ + " is freed, and the device has not ended it");
      break;
    }
    lock.unlock();  // so that `abort` can end it where a member is missing
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
      (void)cuda.event_record(event_->get(), stream_);  // for what the stream has of it
      state_ = State::running;
    }
  }
  return state_ == State::idle || state_ == State::complete ||
         (state_ == State::running && cuda.event_query(event_->get()) != CUDA_ERROR_NOT_READY);
}

void Launch::begin(CUstream stream, std::int64_t deadline) {
  timeout_.reset();
  launch(stream, deadline);
}

void Launch::begin_in_turn(CUstream stream, std::int64_t timeout) {
  const Cuda& cuda = group_.device_.cuda();
  if (turn_ == nullptr) {
    turn_ = make_event(cuda);
  }
  check(cuda, cuda.event_record(turn_->get(), stream), what_);
  timeout_ = timeout;
  launch(stream, INT64_MAX);
}

void Launch::launch(CUstream stream, std::int64_t deadline) {
  const Cuda& cuda = group_.device_.cuda();
  Launch* const before = group_.last_;
  if (before != nullptr && before->state_ == State::running && before->stream_ != stream) {
    check(cuda, cuda.stream_wait_event(stream, before->event_->get(), CU_EVENT_WAIT_DEFAULT), what_);
  }
  stream_ = stream;
  deadline_ = deadline;
  group_.last_ = this;
  const ncclResult_t result = group_.communicator_->launch(steps_, stream);
  if (result != ncclSuccess && result != ncclInProgress) {
    group_.fail(result == ncclRemoteError ? SR_PEER_LOST : SR_INTERNAL,
                what_ + ": " + group_.communicator_->text_of(result));
  }
  group_.wire_bytes_ += wire_bytes_;
  state_ = State::launching;
  group_.in_flight_.push_back(this);
  if (result == ncclSuccess) {
    record();
  }
}

void Launch::record() {
  const Cuda& cuda = group_.device_.cuda();
  check(cuda, cuda.event_record(event_->get(), stream_), what_);
  state_ = State::running;
}

Launch::State Launch::advance() {
  if (state_ == State::idle || state_ == State::complete) {
    return state_;
  }
  Communicator& communicator = *group_.communicator_;
  const ncclResult_t result = communicator.state();
  if (result != ncclSuccess && result != ncclInProgress) {
    group_.fail(result == ncclRemoteError ? SR_PEER_LOST : SR_INTERNAL, what_ + ": " + communicator.text_of(result));
  }
  if (state_ == State::launching && result == ncclSuccess) {
    record();
  }
  if (state_ == State::running) {
    const CUresult ended = group_.device_.cuda().event_query(event_->get());
    if (ended == CUDA_SUCCESS) {
      state_ = State::complete;
      group_.in_flight_.remove(this);
      return state_;
    }
    if (ended != CUDA_ERROR_NOT_READY) {
      try {
        check(group_.device_.cuda(), ended, what_);
      } catch (const TransportError& error) {
        group_.fail(error.status(), error.what());
      }
    }
  }
  const std::int64_t now = sdk::steady_now();
  if (timeout_ && group_.device_.cuda().event_query(turn_->get()) == CUDA_SUCCESS) {
    deadline_ = sdk::deadline_after(now, *timeout_);
    timeout_.reset();
  }
  if (now >= deadline_) {
    group_.fail(SR_TIMEOUT, what_ + " is past its deadline; NCCL does not say which member it lacks");
  }
  return state_;
}

NcclGroup::NcclGroup(const NcclTransportState& state, const Device& device, Watchdog& watchdog,
                     std::atomic<std::uint64_t>& wire_bytes, const sdk::GroupSpec& spec, const std::string& key)
    : state_(state), device_(device), watchdog_(watchdog), wire_bytes_(wire_bytes), spec_(spec) {
  const Device::Use use(device_);
  communicator_ = std::make_unique<Communicator>(state, spec, key);
  stream_ = make_stream(device.cuda());
  word_ = make_memory(device.cuda(), word_bytes + 2 * claims_bytes(spec.size()));
  watchdog_.add(*this);
}

NcclGroup::~NcclGroup() {
  watchdog_.remove(*this);
  try {
    const Device::Use use(device_);
    communicator_.reset();
    stream_.reset();
    word_.reset();
  } catch (const TransportError&) {
    // The device itself is lost.
  }
}

std::unique_ptr<sdk::Op> NcclGroup::prepare(std::span<const sdk::OpSpec> ops, std::int64_t deadline) {
  const Device::Use use(device_);
  for (const sdk::OpSpec& op : ops) {
    if (!info_of(op, spec_.size())) {
      throw TransportError(SR_UNIMPLEMENTED, sdk::describe(op) + ": NCCL drops NaN in it");
    }
    require_device_memory(op);
  }
  if (sdk::find_opcode(ops[0].opcode)->collective && spec_.size() > 1) {
    agree(ops[0], deadline);
  }
  std::string what = sdk::describe(ops[0]);
  if (ops.size() > 1) {
    what += " and " + std::to_string(ops.size() - 1) + " more";
  }
  const std::lock_guard lock(mutex_);
  throw_failure();
  void* const word = reinterpret_cast<void*>(word_->get());
  return std::make_unique<NcclOp>(*this, steps_of(ops, spec_.rank, spec_.size(), word), std::move(what));
}

void NcclGroup::require_device_memory(const sdk::OpSpec& op) const {
  for (const std::optional<sdk::Buffer>* each : {&op.send, &op.recv}) {
    const std::optional<sdk::Buffer>& buffer = *each;
    if (!buffer || buffer->bytes == 0) {
      continue;
    }
    if (buffer->kind != SR_MEMORY_CUDA) {
      throw TransportError(SR_INVALID, sdk::describe(op) + ": its buffer is memory of kind " +
                                           std::to_string(buffer->kind) + ", expected CUDA memory (kind " +
                                           std::to_string(SR_MEMORY_CUDA) + ")");
    }
    if (buffer->device != static_cast<std::uint32_t>(device_.ordinal())) {
      throw TransportError(SR_INVALID, sdk::describe(op) + ": its buffer is on device " +
                                           std::to_string(buffer->device) + ", and this rank's is " +
                                           std::to_string(device_.ordinal()));
    }
  }
}

/// Exchanges the claims through NCCL itself. Without agreement it would hang or write past ends where sizes differ.
void NcclGroup::agree(const sdk::OpSpec& op, std::int64_t deadline) {
  const Cuda& cuda = device_.cuda();
  const std::string what = "preparing " + sdk::describe(op);
  sdk::Agreement agreement(op, spec_.rank, spec_.size());
  const CUdeviceptr given = word_->get() + word_bytes;
  const CUdeviceptr taken = given + claims_bytes(spec_.size());
  for (std::uint32_t round = 0; round < sdk::Agreement::rounds; ++round) {
    const std::size_t bytes = agreement.bytes(round);
    std::vector<NcclCall> steps;
    for (std::uint32_t peer = 0; peer < spec_.size(); ++peer) {
      if (peer != spec_.rank) {
        check(cuda, cuda.copy_to_device(given + bytes * peer, agreement.outgoing(round, peer), bytes), what);
        const auto place = [&](CUdeviceptr base) { return reinterpret_cast<void*>(base + bytes * peer); };
        steps.push_back({.function = NcclCall::Function::send,
                         .send = place(given),
                         .count = bytes,
                         .peer = static_cast<int>(peer)});
        steps.push_back({.function = NcclCall::Function::recv,
                         .recv = place(taken),
                         .count = bytes,
                         .peer = static_cast<int>(peer)});
      }
    }
    run(std::move(steps), what, deadline);
    for (std::uint32_t peer = 0; peer < spec_.size(); ++peer) {
      if (peer != spec_.rank) {
        check(cuda, cuda.copy_from_device(agreement.incoming(round, peer), taken + bytes * peer, bytes), what);
      }
    }
    agreement.conclude(round);
  }
  if (agreement.difference()) {
    throw TransportError(SR_INVALID, *agreement.difference());
  }
}

void NcclGroup::run(std::vector<NcclCall> steps, const std::string& what, std::int64_t deadline) {
  NcclOp op(*this, std::move(steps), what);
  op.start(nullptr, deadline);
  (void)op.wait(INT64_MAX);
}

void NcclGroup::abort(std::string_view reason) noexcept {
  const std::lock_guard lock(mutex_);
  if (!failure_) {
    failure_.emplace(SR_ABORTED, std::string(reason));
    communicator_->abort();
  }
}

std::optional<TransportError> NcclGroup::error() {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void NcclGroup::fail(std::int32_t status, const std::string& text) {
  if (!failure_) {
    failure_.emplace(status, text);
    communicator_->abort();
  }
  throw TransportError(*failure_);
}

void NcclGroup::throw_failure() const {
  if (failure_) {
    throw TransportError(*failure_);
  }
}

void NcclGroup::watch() noexcept {
  const std::lock_guard lock(mutex_);
  if (failure_ || in_flight_.empty()) {
    return;
  }
  try {
    const Device::Use use(device_);
    for (auto each = in_flight_.begin(); each != in_flight_.end();) {
      Launch* const launch = *each++;  // it may leave the list
      (void)launch->advance();
    }
  } catch (const std::exception&) {
    // The group has failed; callers of its ops see the error.
  }
}

void NcclGroup::await_launched(std::unique_lock<std::mutex>& lock) {
  for (std::uint32_t round = 0; last_ != nullptr && last_->state() == Launch::State::launching; ++round) {
    lock.unlock();  // so that `abort` can take it
    pause_polling(round);
    lock.lock();
    throw_failure();
    if (last_ != nullptr) {  // it may have been freed meanwhile
      (void)last_->advance();
    }
  }
}

}  // namespace shardrun::nccl
