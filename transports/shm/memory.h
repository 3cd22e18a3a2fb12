#pragma once

#include <sys/types.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

namespace shardrun::shm_transport {

/// Owns a file descriptor.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int number) noexcept : number_(number) {}
  Descriptor(Descriptor&& other) noexcept : number_(std::exchange(other.number_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(number_, other.number_);
    return *this;
  }
  ~Descriptor() {
    if (number_ >= 0) {
      close(number_);
    }
  }

  /// Negative if it owns no descriptor.
  [[nodiscard]] int number() const noexcept { return number_; }

 private:
  int number_ = -1;
};

/// A memfd (a file without a name) mapped into this process.
class Mapping {
 public:
  /// Makes new memory, filled with zeros. The kernel supplies pages when they are touched. Throws TransportError.
  [[nodiscard]] static std::unique_ptr<Mapping> create(std::size_t bytes);
  /// Maps the whole file that process `pid` has open as `descriptor`. Throws TransportError if that process has ended
  /// or belongs to another user, or if the descriptor's file has another inode.
  [[nodiscard]] static std::unique_ptr<Mapping> open(pid_t pid, int descriptor, std::uint64_t inode);

  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping();

  /// From here on no other process can newly open the memory.
  void close_descriptor() noexcept { descriptor_ = Descriptor(); }
  [[nodiscard]] std::byte* data() const noexcept { return data_; }
  [[nodiscard]] std::size_t bytes() const noexcept { return bytes_; }
  [[nodiscard]] int descriptor() const noexcept { return descriptor_.number(); }
  [[nodiscard]] std::uint64_t inode() const noexcept { return inode_; }

 private:
  Mapping(Descriptor descriptor, std::size_t bytes);

  Descriptor descriptor_;
  std::byte* data_ = nullptr;
  std::size_t bytes_;
  std::uint64_t inode_ = 0;
};

/// A range of memory of one process, described so that another can map it.
struct MemoryRef {
  std::int32_t pid = 0;
  std::int32_t descriptor = -1;
  std::uint64_t inode = 0;
  std::uint64_t offset = 0;
  std::uint64_t bytes = 0;  ///< the last field: a MessageSlot has those before it as one block
};

/// Memory of other processes. Each file is mapped once, for all who use it at the same time. Any thread may use it.
class PeerMemory {
 public:
  /// Maps the range for as long as the returned pointer lives. Returns null if it has no bytes. Throws TransportError.
  [[nodiscard]] std::shared_ptr<std::byte> resolve(const MemoryRef& ref);

 private:
  using FileId = std::tuple<std::int32_t, std::int32_t, std::uint64_t>;  ///< process, descriptor, inode

  [[nodiscard]] std::shared_ptr<Mapping> mapping_of(const MemoryRef& ref);

  std::mutex mutex_;
  std::map<FileId, std::weak_ptr<Mapping>> mappings_;
};

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
