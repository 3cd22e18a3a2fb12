#include "transports/nccl/memories.h"

#include <cstddef>
#include <string>

#include "transports/nccl/group.h"

namespace shardrun::nccl_transport {

std::uint64_t Memories::add(const Memory& memory) {
  const std::lock_guard lock(mutex_);
  memories_[++last_] = memory;
  return last_;
}

void Memories::remove(std::uint64_t registration) {
  const std::lock_guard lock(mutex_);
  for (NcclGroup* const group : groups_) {
    group->deregister(memories_[registration].data);
  }
  memories_.erase(registration);
}

std::optional<Memories::Memory> Memories::memory_of(const sdk::Buffer& buffer) const {
  if (buffer.registration == 0) {
    return std::nullopt;
  }
  const std::lock_guard lock(mutex_);
  const auto found = memories_.find(buffer.registration);
  const auto* const first = static_cast<const std::byte*>(buffer.data);
  if (found != memories_.end()) {
    const Memory& memory = found->second;
    const auto* const begin = static_cast<const std::byte*>(memory.data);
    if (first >= begin && first + buffer.bytes <= begin + memory.bytes) {
      return memory;
    }
  }
  throw sdk::TransportError(SR_INVALID, "its buffer of " + std::to_string(buffer.bytes) +
                                            " bytes is not in the memory that was registered as " +
                                            std::to_string(buffer.registration));
}

void Memories::add(NcclGroup& group) {
  const std::lock_guard lock(mutex_);
  groups_.push_back(&group);
}

void Memories::remove(NcclGroup& group) {
  const std::lock_guard lock(mutex_);
  groups_.remove(&group);
}

}  // namespace shardrun::nccl_transport
