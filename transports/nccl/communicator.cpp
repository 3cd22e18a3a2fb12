#include "transports/nccl/communicator.h"

#include <shardrun/sdk/transport/worker.hpp>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <thread>

namespace shardrun::nccl_transport {
namespace {

using sdk::TransportError;

constexpr std::chrono::milliseconds goodbye(500);

}  // namespace

std::string gpu_key(std::uint32_t rank) { return "nccl/gpu/" + std::to_string(rank); }

void pause_polling(std::uint32_t round) noexcept {
  constexpr std::uint32_t yields = 100;
  if (round < yields) {
    std::this_thread::yield();
  } else {
    std::this_thread::sleep_for(std::chrono::microseconds(std::min<std::uint32_t>(round - yields + 10, 500)));
  }
}

Communicator::Communicator(const NcclTransportState& state, const sdk::GroupSpec& spec, const std::string& key)
    : state_(state), nccl_(state.libraries.nccl) {
  const ncclUniqueId id = exchange_id(spec, key);
  try {
    connect(spec, id);
  } catch (...) {
    abort();
    throw;
  }
}

Communicator::~Communicator() {
  if (handle_ == nullptr) {
    return;
  }
  for (const auto& [data, handle] : registered_) {
    if (handle != nullptr) {
      (void)nccl_.deregister_memory(handle_, handle);
    }
  }
  ncclResult_t state = nccl_.finalize(handle_);
  const sdk::Deadline latest = sdk::Deadline::now() + goodbye;
  for (std::uint32_t round = 0; state == ncclInProgress && !latest.passed(); ++round) {
    pause_polling(round);
    state = this->state();
  }
  if (state == ncclSuccess) {
    (void)nccl_.destroy(handle_);
  } else {
    abort();
  }
}

ncclUniqueId Communicator::exchange_id(const sdk::GroupSpec& spec, const std::string& key) const {
  ncclUniqueId id{};
  if (spec.rank == 0) {
    if (const ncclResult_t result = nccl_.unique_id(&id); result != ncclSuccess) {
      throw TransportError(SR_INTERNAL, "no place to meet at: " + text_of(result));
    }
    state_.config.host.store_set(key, std::string_view(id.internal, sizeof(id.internal)));
    return id;
  }
  try {
    const std::string told = state_.config.host.store_get(key, spec.deadline);
    std::memcpy(id.internal, told.data(), std::min(told.size(), sizeof(id.internal)));
  } catch (const TransportError& error) {
    if (error.status() != SR_TIMEOUT) {
      throw;
    }
    throw TransportError(SR_TIMEOUT, "past the deadline, waiting for " + spec.name_of(0), spec.members[0]);
  }
  return id;
}

void Communicator::connect(const sdk::GroupSpec& spec, const ncclUniqueId& id) {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclResult_t result = nccl_.init(&handle_, static_cast<int>(spec.size()), id, static_cast<int>(spec.rank), &config);
  for (std::uint32_t round = 0; result == ncclInProgress; ++round) {
    if (spec.deadline.passed()) {
      throw TransportError(SR_TIMEOUT, "past the deadline, while NCCL connects its " + std::to_string(spec.size()) +
                                           " members (NCCL_DEBUG=INFO tells more)");
    }
    if (state_.config.host.aborted()) {
      throw TransportError(SR_ABORTED, "the job ends, while NCCL connects the members");
    }
    pause_polling(round);
    result = state();
  }
  if (result == ncclSuccess) {
    return;
  }
  if (const std::string shared = result == ncclInvalidUsage ? shared_gpu(spec) : ""; !shared.empty()) {
    throw TransportError(SR_INVALID, shared + ": " + text_of(result));
  }
  throw TransportError(result == ncclRemoteError ? SR_PEER_LOST : SR_INTERNAL,
                       "NCCL cannot connect the members: " + text_of(result));
}

/// Says which two members are on one GPU, and what to do. Empty if no two are, or if the store does not tell in time.
std::string Communicator::shared_gpu(const sdk::GroupSpec& spec) const {
  std::map<std::string, std::uint32_t> members;
  for (std::uint32_t member = 0; member < spec.size(); ++member) {
    std::string gpu = state_.gpu;
    try {
      if (member != spec.rank) {
        gpu = state_.config.host.store_get(gpu_key(spec.members[member]),
                                           std::min(spec.deadline, sdk::Deadline::now() + goodbye));
      }
    } catch (const TransportError&) {
      return "";
    }
    const auto [other, is_first] = members.emplace(gpu, member);
    if (!is_first) {
      int version = 0;
      (void)nccl_.version(&version);
      return spec.name_of(other->second) + " and " + spec.name_of(member) + " are on one GPU (" + gpu +
             "): start one rank for each GPU; or use NCCL 2.30 or newer (this is " + std::to_string(version) +
             ") and set NCCL_MULTI_RANK_GPU_ENABLE=1 for all ranks";
    }
  }
  return "";
}

ncclResult_t Communicator::register_memory(void* data, std::size_t bytes) {
  if (nccl_.register_memory == nullptr || nccl_.deregister_memory == nullptr || registered_.contains(data)) {
    return ncclSuccess;
  }
  return nccl_.register_memory(handle_, data, bytes, &registered_[data]);
}

void Communicator::deregister_memory(void* data) {
  if (const auto found = registered_.find(data); found != registered_.end()) {
    if (found->second != nullptr) {
      (void)nccl_.deregister_memory(handle_, found->second);
    }
    registered_.erase(found);
  }
}

ncclResult_t Communicator::launch(std::span<const NcclCall> calls, CUstream stream) {
  if (calls.empty()) {
    return ncclSuccess;
  }
  ncclResult_t first = nccl_.group_start();
  for (const NcclCall& call : calls) {
    const ncclResult_t result = issue(call, stream);
    first = first == ncclSuccess && result != ncclInProgress ? result : first;
  }
  const ncclResult_t ended = nccl_.group_end();
  return first == ncclSuccess ? ended : first;
}

ncclResult_t Communicator::issue(const NcclCall& call, CUstream stream) {
  switch (call.function) {
    case NcclCall::Function::send: return nccl_.send(call.send, call.count, call.dtype, call.peer, handle_, stream);
    case NcclCall::Function::recv: return nccl_.recv(call.recv, call.count, call.dtype, call.peer, handle_, stream);
    case NcclCall::Function::broadcast:
      return nccl_.broadcast(call.send, call.recv, call.count, call.dtype, call.peer, handle_, stream);
    case NcclCall::Function::reduce:
      return nccl_.reduce(call.send, call.recv, call.count, call.dtype, call.reduction, call.peer, handle_, stream);
    case NcclCall::Function::all_reduce:
      return nccl_.all_reduce(call.send, call.recv, call.count, call.dtype, call.reduction, handle_, stream);
    case NcclCall::Function::all_gather:
      return nccl_.all_gather(call.send, call.recv, call.count, call.dtype, handle_, stream);
    case NcclCall::Function::reduce_scatter:
      return nccl_.reduce_scatter(call.send, call.recv, call.count, call.dtype, call.reduction, handle_, stream);
  }
  return ncclInternalError;
}

ncclResult_t Communicator::state() {
  ncclResult_t state = ncclSuccess;
  const ncclResult_t asked = nccl_.async_error(handle_, &state);
  return asked == ncclSuccess ? state : asked;
}

void Communicator::abort() noexcept {
  if (handle_ != nullptr) {
    (void)nccl_.abort(handle_);
    handle_ = nullptr;
  }
}

std::string Communicator::text_of(ncclResult_t result) const {
  const char* const last = nccl_.last_error(handle_);
  std::string text = nccl_.error_text(result);
  return last != nullptr && *last != '\0' ? text + ": " + last : text;
}

}  // namespace shardrun::nccl_transport
