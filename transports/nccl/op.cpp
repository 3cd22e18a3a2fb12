#include "transports/nccl/op.h"

#include <utility>

namespace shardrun::nccl_transport {

using sdk::TransportError;

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

void NcclOp::start(void* queue, std::int64_t deadline) {
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

void NcclOp::enqueue(const sdk::Queue& queue, std::int64_t timeout) {
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

bool NcclOp::wait(std::int64_t deadline) {
  for (std::uint32_t round = 0; !test(); ++round) {
    if (sdk::steady_now() >= deadline) {
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
