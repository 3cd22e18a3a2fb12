#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

namespace shardrun::shm_transport {

/// One member's hold on a segment, the shared memory of one collective. Releases it when destroyed.
class OpSegment {
 public:
  OpSegment() = default;
  OpSegment(std::atomic<std::uint32_t>& holders, std::byte* data) noexcept : holders_(&holders), data_(data) {}
  OpSegment(OpSegment&& other) noexcept
      : holders_(std::exchange(other.holders_, nullptr)), data_(std::exchange(other.data_, nullptr)) {}
  OpSegment& operator=(OpSegment&& other) noexcept {
    std::swap(holders_, other.holders_);
    std::swap(data_, other.data_);
    return *this;
  }
  ~OpSegment() {
    if (holders_ != nullptr) {
      holders_->fetch_sub(1, std::memory_order_release);
    }
  }

  [[nodiscard]] std::byte* data() const noexcept { return data_; }

 private:
  std::atomic<std::uint32_t>* holders_ = nullptr;
  std::byte* data_ = nullptr;
};

/// The group's memory for collectives. Members free their ops in different orders, so a single fixed member assigns
/// segments and tells the others their offsets. A segment is free once every member has released it.
class SegmentPool {
 public:
  SegmentPool(std::byte* memory, std::size_t bytes, std::uint32_t members) noexcept
      : memory_(memory), bytes_(bytes), members_(members) {}

  /// Returns the offset of a free segment of at least `bytes`, which every member then holds. Nothing if the memory is
  /// used up.
  [[nodiscard]] std::optional<std::uint64_t> assign(std::size_t bytes);
  /// This member's hold on an assigned segment. Call it once on each member.
  [[nodiscard]] OpSegment hold(std::uint64_t offset) const noexcept;
  [[nodiscard]] std::byte* data(std::uint64_t offset) const noexcept;

 private:
  [[nodiscard]] std::atomic<std::uint32_t>& holders_of(std::uint64_t offset) const noexcept;

  std::byte* memory_;
  std::size_t bytes_;
  std::uint32_t members_;
  std::uint64_t used_ = 0;
  std::map<std::size_t, std::vector<std::uint64_t>> by_size_;  ///< offsets of all segments, held or free, by size
};

}  // namespace shardrun::shm_transport
