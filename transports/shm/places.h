#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

namespace shm {

/// Memory for one op, the same for all members. Given back by each of them with this object.
class Place {
 public:
  Place() = default;
  Place(std::atomic<std::uint32_t>& holders, std::byte* data) noexcept : holders_(&holders), data_(data) {}
  Place(Place&& other) noexcept
      : holders_(std::exchange(other.holders_, nullptr)), data_(std::exchange(other.data_, nullptr)) {}
  Place& operator=(Place&& other) noexcept {
    std::swap(holders_, other.holders_);
    std::swap(data_, other.data_);
    return *this;
  }
  ~Place() {
    if (holders_ != nullptr) {
      holders_->fetch_sub(1, std::memory_order_release);
    }
  }

  [[nodiscard]] std::byte* data() const noexcept { return data_; }

 private:
  std::atomic<std::uint32_t>* holders_ = nullptr;
  std::byte* data_ = nullptr;
};

/// A group's memory for ops. Members free their ops in orders of their own, so one of them, always the same, deals out
/// places and tells the others; a place is free once all members have given it back.
class Places {
 public:
  Places(std::byte* memory, std::size_t bytes, std::uint32_t members) noexcept
      : memory_(memory), bytes_(bytes), members_(members) {}

  /// Memory that nobody holds, in words that `take` understands on every member; nothing where none are left. From now
  /// on every member holds them.
  [[nodiscard]] std::optional<std::uint64_t> deal(std::size_t bytes);
  /// Once on each member.
  [[nodiscard]] Place take(std::uint64_t dealt) const noexcept;
  [[nodiscard]] std::byte* data(std::uint64_t dealt) const noexcept;

 private:
  [[nodiscard]] std::atomic<std::uint32_t>& holders_of(std::uint64_t dealt) const noexcept;

  std::byte* memory_;
  std::size_t bytes_;
  std::uint32_t members_;
  std::uint64_t used_ = 0;
  std::map<std::size_t, std::vector<std::uint64_t>> made_;  ///< held or free, by their size
};

}  // namespace shm
