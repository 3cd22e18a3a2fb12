#include "transports/nccl/group.h"

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <shardrun/sdk/transport/agreement.hpp>
#include <utility>

namespace shardrun::nccl_transport {
namespace {

constexpr std::size_t word_bytes = 256;  ///< more than a word, to keep what follows aligned

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

using sdk::TransportError;

/// A prepared op or batch.
class NcclOp final : public sdk::Op {
 public:
  NcclOp(NcclGroup& group, std::vector<Stage> stages, std::string what, std::optional<std::uint32_t> peer);
  ~NcclOp() override;

  void start(void* queue, sdk::Deadline deadline) override;
  /// The group's first op waits here, because NCCL connects the members before it gives that op to the stream.
  void enqueue(const sdk::Queue& queue, std::chrono::nanoseconds timeout) override;
  void join(const sdk::Queue& queue) override;
  bool test() override;
  bool wait(sdk::Deadline deadline) override;

 private:
  void require_device(const sdk::Queue& queue) const;
  bool is_complete();

  NcclGroup& group_;
  std::unique_ptr<Launch> launch_;
};

NcclGroup::NcclGroup(const NcclTransportState& state, const Device& device, const Kernels& kernels, Memories& memories,
                     Watchdog& watchdog, std::atomic<std::uint64_t>& wire_bytes, const sdk::GroupSpec& spec,
                     const std::string& key)
    : state_(state),
      device_(device),
      kernels_(kernels),
      memories_(memories),
      watchdog_(watchdog),
      wire_bytes_(wire_bytes),
      spec_(spec) {
  const Device::Use use(device_);
  communicator_ = std::make_unique<Communicator>(state, spec, key);
  stream_ = make_stream(device.cuda());
  word_ = make_memory(device.cuda(), word_bytes + 2 * claims_bytes(spec.size()));
  memories_.add(*this);
  watchdog_.add(*this);
}

NcclGroup::~NcclGroup() {
  watchdog_.remove(*this);
  memories_.remove(*this);
  try {
    const Device::Use use(device_);
    communicator_.reset();
    stream_.reset();
    word_.reset();
  } catch (const TransportError&) {
    // Nothing can be done: the device itself is lost.
  }
}

std::unique_ptr<sdk::Op> NcclGroup::prepare(std::span<const sdk::OpSpec> ops, sdk::Deadline deadline) {
  const Device::Use use(device_);
  for (const sdk::OpSpec& op : ops) {
    const std::optional<sdk::OpInfo> info = info_of(op, spec_.size(), has_kernels());
    if (!info) {
      throw TransportError(SR_UNIMPLEMENTED, sdk::describe(op) + no_kernels);
    }
    check_buffers(op, info->scratch_bytes, deadline);
  }
  if (sdk::find_opcode(ops[0].opcode)->collective && spec_.size() > 1) {
    agree(ops[0], deadline);
  }
  std::string what = sdk::describe(ops[0]);
  if (ops.size() > 1) {
    what += " and " + std::to_string(ops.size() - 1) + " more";
  }
  {
    const std::lock_guard lock(mutex_);
    throw_failure();
  }
  void* const word = reinterpret_cast<void*>(word_->get());
  return std::make_unique<NcclOp>(*this, stages_of(ops, spec_.rank, spec_.size(), word, has_kernels()), std::move(what),
                                  peer_of(ops));
}

void NcclGroup::check_buffers(const sdk::OpSpec& op, std::uint64_t scratch_bytes, sdk::Deadline deadline) {
  if (scratch_bytes > (op.scratch ? op.scratch->bytes : 0)) {
    throw TransportError(SR_INVALID, sdk::describe(op) + ": it needs " + std::to_string(scratch_bytes) +
                                         " bytes of scratch on the device, and has " +
                                         std::to_string(op.scratch ? op.scratch->bytes : 0));
  }
  for (const std::optional<sdk::Buffer>* each : {&op.send, &op.recv, &op.scratch}) {
    if (*each && (*each)->bytes != 0) {
      check_buffer(op, **each, deadline);
    }
  }
}

void NcclGroup::check_buffer(const sdk::OpSpec& op, const sdk::Buffer& buffer, sdk::Deadline deadline) {
  if (buffer.kind != SR_MEMORY_CUDA) {
    throw TransportError(SR_INVALID, sdk::describe(op) + ": its buffer is memory of kind " +
                                         std::to_string(buffer.kind) + ", expected CUDA memory (kind " +
                                         std::to_string(SR_MEMORY_CUDA) + ")");
  }
  if (buffer.device != static_cast<std::uint32_t>(device_.ordinal())) {
    throw TransportError(SR_INVALID, sdk::describe(op) + ": its buffer is on device " + std::to_string(buffer.device) +
                                         ", and this rank's is " + std::to_string(device_.ordinal()));
  }
  try {
    if (const std::optional<Memories::Memory> memory = memories_.memory_of(buffer)) {
      register_memory(*memory, deadline);
    }
  } catch (const TransportError& error) {
    throw error.within(sdk::describe(op));
  }
}

void NcclGroup::register_memory(const Memories::Memory& memory, sdk::Deadline deadline) {
  std::unique_lock lock(mutex_);
  throw_failure();
  await_launched(lock);
  const std::string what = "registering " + std::to_string(memory.bytes) + " bytes of memory with NCCL";
  ncclResult_t result = communicator_->register_memory(memory.data, memory.bytes);
  for (std::uint32_t round = 0; result == ncclInProgress; ++round) {
    if (deadline.passed()) {
      fail(SR_TIMEOUT, what + " is past the deadline");
    }
    lock.unlock();  // so that abort() can take the lock
    pause_polling(round);
    lock.lock();
    throw_failure();
    result = communicator_->state();
  }
  if (result != ncclSuccess) {
    state_.log.warning(what + ", which it refuses, so it moves them more slowly: " + communicator_->text_of(result));
  }
}

void NcclGroup::deregister(void* data) {
  const std::lock_guard lock(mutex_);
  if (!failure_) {
    const Device::Use use(device_);
    communicator_->deregister_memory(data);
  }
}

/// Exchanges the members' claims through NCCL itself. Without that exchange, NCCL would hang or write past buffers if
/// the members' sizes differ.
void NcclGroup::agree(const sdk::OpSpec& op, sdk::Deadline deadline) {
  const Cuda& cuda = device_.cuda();
  const std::string what = "preparing " + sdk::describe(op);
  sdk::Agreement agreement(op, spec_.rank, spec_.size());
  const CUdeviceptr given = word_->get() + word_bytes;
  const CUdeviceptr taken = given + claims_bytes(spec_.size());
  for (std::uint32_t round = 0; round < sdk::Agreement::rounds; ++round) {
    const std::size_t bytes = agreement.bytes(round);
    std::vector<NcclCall> calls;
    for (std::uint32_t peer = 0; peer < spec_.size(); ++peer) {
      if (peer != spec_.rank) {
        check(cuda, cuda.copy_to_device(given + bytes * peer, agreement.outgoing(round, peer), bytes, stream_->get()),
              what);
        const auto place = [&](CUdeviceptr base) { return reinterpret_cast<void*>(base + bytes * peer); };
        calls.push_back({.function = NcclCall::Function::send,
                         .send = place(given),
                         .count = bytes,
                         .peer = static_cast<int>(peer)});
        calls.push_back({.function = NcclCall::Function::recv,
                         .recv = place(taken),
                         .count = bytes,
                         .peer = static_cast<int>(peer)});
      }
    }
    run({{.calls = std::move(calls)}}, what, deadline);
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

void NcclGroup::run(std::vector<Stage> stages, const std::string& what, sdk::Deadline deadline) {
  NcclOp op(*this, std::move(stages), what, spec_.size() == 2 ? std::optional(1 - spec_.rank) : std::nullopt);
  op.start(nullptr, deadline);
  (void)op.wait(sdk::Deadline::never());
}

void NcclGroup::abort(std::string_view reason) noexcept {
  const std::lock_guard lock(mutex_);
  if (!failure_) {
    failure_.emplace(SR_ABORTED, std::string(reason));
    std::optional<Device::Use> use;
    try {
      use.emplace(device_);
    } catch (const TransportError&) {
      // The device itself is lost, but NCCL may still release the rest.
    }
    communicator_->abort();
  }
}

std::optional<TransportError> NcclGroup::error() {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void NcclGroup::fail(std::int32_t status, const std::string& text, std::optional<std::uint32_t> awaited) {
  if (!failure_) {
    failure_.emplace(status, text, awaited);
    communicator_->abort();
  }
  throw TransportError(*failure_);
}

void NcclGroup::fail_by(ncclResult_t result, const std::string& what, std::optional<std::uint32_t> peer) {
  const std::string text = what + ": " + communicator_->text_of(result);
  if (result != ncclRemoteError) {
    fail(SR_INTERNAL, text);
  }
  fail(SR_PEER_LOST, peer ? text + " (" + spec_.name_of(*peer) + ")" : text,
       peer ? std::optional(spec_.members[*peer]) : std::nullopt);
}

std::optional<std::uint32_t> NcclGroup::peer_of(std::span<const sdk::OpSpec> ops) const {
  if (spec_.size() == 2) {
    return 1 - spec_.rank;
  }
  for (const sdk::OpSpec& op : ops) {
    if (sdk::find_opcode(op.opcode)->collective || op.peer != ops[0].peer) {
      return std::nullopt;
    }
  }
  return ops[0].peer;
}

void NcclGroup::throw_failure() const {
  if (failure_) {
    throw TransportError(*failure_);
  }
}

void NcclGroup::watch() noexcept {
  const std::lock_guard lock(mutex_);
  if (failure_ || std::ranges::none_of(launches_, &Launch::is_under_way)) {
    return;
  }
  try {
    const Device::Use use(device_);
    for (Launch* const launch : launches_) {
      (void)launch->advance();
    }
  } catch (const std::exception&) {
    // The group has failed; the callers of its ops get the error.
  }
}

void NcclGroup::await_launched(std::unique_lock<std::mutex>& lock) {
  for (std::uint32_t round = 0; last_ != nullptr && last_->state() == Launch::State::launching; ++round) {
    lock.unlock();  // so that abort() can take the lock
    pause_polling(round);
    lock.lock();
    throw_failure();
    if (last_ != nullptr) {  // it may have been freed while the lock was released
      (void)last_->advance();
    }
  }
}

NcclOp::NcclOp(NcclGroup& group, std::vector<Stage> stages, std::string what, std::optional<std::uint32_t> peer)
    : group_(group) {
  const std::lock_guard lock(group_.mutex_);
  launch_ = std::make_unique<Launch>(group, std::move(stages), std::move(what), peer);
}

NcclOp::~NcclOp() {
  std::unique_lock lock(group_.mutex_);
  try {
    const Device::Use use(group_.device_);
    launch_->await_end(lock);
    launch_.reset();
  } catch (const TransportError&) {
    launch_.reset();  // the device itself is lost
  }
}

void NcclOp::start(void* queue, sdk::Deadline deadline) {
  std::unique_lock lock(group_.mutex_);
  const Device::Use use(group_.device_);
  group_.throw_failure();
  group_.await_launched(lock);
  if (queue != nullptr) {
    launch_->begin_after(static_cast<CUstream>(queue), deadline);
  } else {
    launch_->begin(deadline);
  }
}

void NcclOp::enqueue(const sdk::Queue& queue, std::chrono::nanoseconds timeout) {
  require_device(queue);
  std::unique_lock lock(group_.mutex_);
  const Device::Use use(group_.device_);
  group_.throw_failure();
  group_.await_launched(lock);
  launch_->begin_in(static_cast<CUstream>(queue.native()), timeout);
  group_.await_launched(lock);
}

void NcclOp::join(const sdk::Queue& queue) {
  require_device(queue);
  std::unique_lock lock(group_.mutex_);
  const Device::Use use(group_.device_);
  if (launch_->state() == Launch::State::launching) {
    group_.await_launched(lock);
  }
  launch_->join(static_cast<CUstream>(queue.native()));
}

bool NcclOp::test() {
  const std::lock_guard lock(group_.mutex_);
  const Device::Use use(group_.device_);
  return is_complete();
}

bool NcclOp::wait(sdk::Deadline deadline) {
  for (std::uint32_t round = 0; !test(); ++round) {
    if (deadline.passed()) {
      return false;
    }
    pause_polling(round);
  }
  return true;
}

void NcclOp::require_device(const sdk::Queue& queue) const {
  if (queue.device() != static_cast<std::uint32_t>(group_.device_.ordinal())) {
    throw TransportError(SR_INVALID, launch_->what() + ": its queue is of device " + std::to_string(queue.device()) +
                                         ", and this rank's is " + std::to_string(group_.device_.ordinal()));
  }
}

bool NcclOp::is_complete() {
  if (launch_->state() != Launch::State::complete) {
    group_.throw_failure();
  }
  return launch_->advance() == Launch::State::complete;
}

}  // namespace shardrun::nccl_transport
