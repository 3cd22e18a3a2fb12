#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <shardrun/sdk/agreement.hpp>
#include <shardrun/sdk/transport.hpp>
#include <string>
#include <vector>

#include "descriptor.h"
#include "memory.h"

namespace shm {

using shardrun::sdk::Claim;
using shardrun::sdk::Config;
using shardrun::sdk::GroupSpec;
using shardrun::sdk::TransportError;
using shardrun::sdk::TransportHost;

/// How far a member is with an op, in a cache line of its own. A stage of generation g has number stages * g + stage:
/// it only grows.
struct alignas(64) Progress {
  std::atomic<std::uint64_t> reached;
};

/// A message that waits for its receiver. Free entries have state 0.
struct alignas(64) Post {
  std::atomic<std::uint32_t> state;
  std::uint32_t reserved;
  std::atomic<std::uint64_t> ticket;  ///< order among the posts of one pair
  std::uint64_t id;
  MemoryRef memory;
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<std::uint32_t>::is_always_lock_free);

enum : std::uint32_t { post_free = 0, post_filling = 1, post_ready = 2, post_taken = 3, post_done = 4 };

inline constexpr std::uint32_t posts_per_pair = 16;

/// What a member says of itself and of the op that it prepares.
struct alignas(64) Member {
  std::int32_t pid;
  std::uint32_t disagrees;  ///< it has seen that an op is not another's
  MemoryRef send;
  MemoryRef recv;
};

struct alignas(64) Header {
  std::atomic<std::uint32_t> bell;     ///< futex: rung at every change that somebody may wait for
  std::atomic<std::uint32_t> waiting;  ///< who would have to be woken
  std::atomic<std::uint32_t> failed;   ///< 1 + the member who failed first
};

/// The memory that a group meets in: laid out alike on all members, made by the first and mapped by the others.
class Control {
 public:
  /// Waits for the members, at most until the spec's deadline. `key`: this group's alone in the store. Throws
  /// TransportError.
  Control(const Config& config, const GroupSpec& spec, const std::string& key);
  Control(const Control&) = delete;
  Control& operator=(const Control&) = delete;
  ~Control() = default;

  [[nodiscard]] std::uint32_t rank() const noexcept { return spec_.rank; }
  [[nodiscard]] std::uint32_t size() const noexcept { return spec_.size(); }
  [[nodiscard]] Member& member(std::uint32_t index) const noexcept;
  [[nodiscard]] Claim& claim(std::uint32_t from, std::uint32_t to) const noexcept;
  [[nodiscard]] Post& post(std::uint32_t from, std::uint32_t to, std::uint32_t index) const noexcept;
  [[nodiscard]] Progress& preparing(std::uint32_t index) const noexcept;

  /// Memory that every member gets at the same place, because all ask for the same in one order.
  [[nodiscard]] std::byte* allocate(std::size_t bytes);

  /// "member 1 (rank 3, pid 4711)"
  [[nodiscard]] std::string name_of(std::uint32_t member) const;

  /// Wakes whoever waits.
  void ring() noexcept;
  /// Tells the other members that this one has failed.
  void mark_failed() noexcept;

  /// Waits until `ready`, by a few yields and then on the futex. False where `deadline` passed before. Throws
  /// SR_ABORTED where the job is to end, `cancelled` says so or a member has failed, SR_PEER_LOST where one is gone.
  template <class Ready>
  [[nodiscard]] bool wait(std::int64_t deadline, const std::atomic<bool>& cancelled, const Ready& ready) {
    for (int turn = 0; turn < yields; ++turn) {
      if (ready()) {
        return true;
      }
      if (deadline <= 0) {
        return false;
      }
      yield();
    }
    for (;;) {
      const std::uint32_t seen = header_->bell.load();
      header_->waiting.fetch_add(1);
      const bool is_ready = ready();
      if (!is_ready) {
        sleep(seen, deadline);
      }
      header_->waiting.fetch_sub(1);
      if (is_ready || ready()) {
        return true;
      }
      check(cancelled);
      if (host_.now() >= deadline) {
        return false;
      }
    }
  }

 private:
  static constexpr int yields = 64;

  static void yield() noexcept;
  void sleep(std::uint32_t seen, std::int64_t deadline) const noexcept;
  void check(const std::atomic<bool>& cancelled) const;

  void meet(const std::string& key);
  [[nodiscard]] Descriptor watch(std::uint32_t member, const std::string& key) const;
  [[nodiscard]] std::byte* at(std::size_t offset) const noexcept { return mapping_->data() + offset; }

  const GroupSpec spec_;
  TransportHost host_;
  std::unique_ptr<Mapping> mapping_;
  Header* header_ = nullptr;
  std::size_t members_at_ = 0;
  std::size_t claims_at_ = 0;
  std::size_t posts_at_ = 0;
  std::size_t preparing_at_ = 0;
  std::size_t next_ = 0;
  std::vector<Descriptor> pidfds_;  ///< readable once that member's process has ended; none of this one
};

}  // namespace shm
