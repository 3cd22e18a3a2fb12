#include "places.h"

#include <algorithm>
#include <bit>

namespace shm {
namespace {

/// A cache line before each place counts its holders.
constexpr std::size_t head_bytes = 64;

}  // namespace

std::optional<std::uint64_t> Places::deal(std::size_t bytes) {
  const std::size_t size = std::bit_ceil(head_bytes + bytes);
  std::vector<std::uint64_t>& alike = made_[size];
  auto found = std::find_if(alike.begin(), alike.end(), [&](std::uint64_t place) {
    return holders_of(place).load(std::memory_order_acquire) == 0;
  });
  if (found == alike.end()) {
    if (size > bytes_ - used_) {
      return std::nullopt;
    }
    found = alike.insert(alike.end(), used_);
    used_ += size;
  }
  holders_of(*found).store(members_);
  return *found;
}

Place Places::take(std::uint64_t dealt) const noexcept { return {holders_of(dealt), data(dealt)}; }

std::byte* Places::data(std::uint64_t dealt) const noexcept { return memory_ + dealt + head_bytes; }

std::atomic<std::uint32_t>& Places::holders_of(std::uint64_t dealt) const noexcept {
  return *reinterpret_cast<std::atomic<std::uint32_t>*>(memory_ + dealt);
}

}  // namespace shm
