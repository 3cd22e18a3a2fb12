#include "transports/shm/segments.h"

#include <algorithm>
#include <bit>

namespace shardrun::shm_transport {
namespace {

/// The cache line before each segment counts its holders.
constexpr std::size_t head_bytes = 64;

}  // namespace

std::optional<std::uint64_t> SegmentPool::assign(std::size_t bytes) {
  const std::size_t size = std::bit_ceil(head_bytes + bytes);
  std::vector<std::uint64_t>& same_size = by_size_[size];
  auto found = std::find_if(same_size.begin(), same_size.end(), [&](std::uint64_t offset) {
    return holders_of(offset).load(std::memory_order_acquire) == 0;
  });
  if (found == same_size.end()) {
    if (size > bytes_ - used_) {
      return std::nullopt;
    }
    found = same_size.insert(same_size.end(), used_);
    used_ += size;
  }
  holders_of(*found).store(members_);
  return *found;
}

OpSegment SegmentPool::hold(std::uint64_t offset) const noexcept { return {holders_of(offset), data(offset)}; }

std::byte* SegmentPool::data(std::uint64_t offset) const noexcept { return memory_ + offset + head_bytes; }

std::atomic<std::uint32_t>& SegmentPool::holders_of(std::uint64_t offset) const noexcept {
  return *reinterpret_cast<std::atomic<std::uint32_t>*>(memory_ + offset);
}

}  // namespace shardrun::shm_transport
