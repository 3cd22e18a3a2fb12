#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <shardrun/sdk/agreement.hpp>
#include <shardrun/sdk/transport.hpp>
#include <string>
#include <vector>

#include "descriptor.h"
#include "memory.h"
#include "places.h"

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

/// A message that waits for its receiver: the n-th of those between two members has number n, from 1 on. A batch's
/// messages stand from the first entry on, so that few entries are ever touched; when it starts, all are free.
struct alignas(64) Post {
  std::atomic<std::uint64_t> number;  ///< of the message: written last
  std::atomic<std::uint64_t> done;    ///< the number of the message that the receiver has
  std::uint64_t id;
  MemoryRef memory;
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<std::uint32_t>::is_always_lock_free);

/// The most sends to one member in one batch. Batches of one member are under way one after the other.
inline constexpr std::uint32_t posts_per_pair = 4096;

/// What one member tells another of the op that it prepares.
struct Told {
  Claim claim;
  std::uint64_t offset;  ///< all_to_allv: where in its send the block for the other begins
};

/// What a member says of itself and of the op that it prepares.
struct alignas(64) Member {
  std::int32_t pid;
  std::uint32_t disagrees;            ///< it has seen that an op is not another's
  std::atomic<std::uint32_t> failed;  ///< not zero: its group has failed
  MemoryRef send;
  MemoryRef recv;
};

struct alignas(64) Header {
  std::atomic<std::uint32_t> bell;     ///< futex: rung at every change that somebody may wait for
  std::atomic<std::uint32_t> waiting;  ///< who would have to be woken
  std::uint64_t place;                 ///< of the collective that is being prepared, as the first member dealt it
};

constexpr std::size_t align_up(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

/// Where what begins in the memory of a group of n. Reserved, not used: pages are given as they are touched.
struct Layout {
  explicit constexpr Layout(std::size_t n)
      : members(align_up(sizeof(Header))),
        preparing(members + n * sizeof(Member)),
        told(preparing + n * sizeof(Progress)),
        posts(align_up(told + n * n * sizeof(Told))),
        ops(posts + n * n * posts_per_pair * sizeof(Post)),
        end(ops + op_bytes) {}

  static constexpr std::size_t op_bytes = std::size_t{1} << 30U;

  std::size_t members;
  std::size_t preparing;
  std::size_t told;
  std::size_t posts;
  std::size_t ops;
  std::size_t end;
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
  [[nodiscard]] Told& told(std::uint32_t from, std::uint32_t to) const noexcept;
  [[nodiscard]] Post* posts(std::uint32_t from, std::uint32_t to) const noexcept;
  [[nodiscard]] Progress& preparing(std::uint32_t index) const noexcept;

  /// For the first member, before a meeting: all others get the same from `take_place` after it.
  void deal_place(std::size_t bytes);
  [[nodiscard]] Place take_place() const noexcept { return places_->take(header_->place); }

  /// "member 1 (rank 3, pid 4711)"
  [[nodiscard]] std::string name_of(std::uint32_t member) const;
  /// Whether that member's process, whose memory could not be opened, has ended or does so now.
  [[nodiscard]] bool is_gone(std::uint32_t member) const noexcept;

  /// Wakes whoever waits.
  void ring() noexcept;
  /// Tells the other members that this one has failed.
  void mark_failed() noexcept;

  /// Whether what is waited for takes that member's part.
  using Needs = std::function<bool(std::uint32_t member)>;
  [[nodiscard]] static bool everyone(std::uint32_t) noexcept { return true; }

  /// Waits until `ready`, by a few yields and then on the futex. False where `deadline` passed before; one that is not
  /// positive only looks. Throws SR_ABORTED where the job is to end, `cancelled` says so or a member that is needed has
  /// failed, SR_PEER_LOST where one is gone.
  template <class Ready>
  [[nodiscard]] bool wait(std::int64_t deadline, const std::atomic<bool>& cancelled, const Needs& needs,
                          const Ready& ready) {
    if (deadline <= 0) {
      return ready() || (is_time_to_look() && is_ready_after_all(cancelled, needs, ready));
    }
    for (int turn = 0; turn < yields; ++turn) {
      if (ready()) {
        return true;
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
      if (is_ready || ready() || is_ready_after_all(cancelled, needs, ready)) {
        return true;
      }
      if (host_.now() >= deadline) {
        return false;
      }
    }
  }

 private:
  static constexpr int yields = 64;

  static void yield() noexcept;
  void sleep(std::uint32_t seen, std::int64_t deadline) const noexcept;
  /// Not at every glance of one who polls: a look asks the kernel.
  [[nodiscard]] bool is_time_to_look() noexcept;
  /// Why `ready` will not come true any more, if it will not.
  [[nodiscard]] std::optional<TransportError> obstacle(const std::atomic<bool>& cancelled, const Needs& needs) const;
  [[nodiscard]] std::optional<std::uint32_t> first_gone(const Needs& needs) const;

  /// Throws an obstacle that is still one after a look at what has come: a member may do its part and end just before
  /// it is looked at, and `ready` may take that part while another's is still due.
  template <class Ready>
  [[nodiscard]] bool is_ready_after_all(const std::atomic<bool>& cancelled, const Needs& needs, const Ready& ready) {
    std::string before;
    while (const std::optional<TransportError> found = obstacle(cancelled, needs)) {
      if (found->what() == before) {
        throw TransportError(*found);
      }
      if (ready()) {
        return true;
      }
      before = found->what();
    }
    return false;
  }

  void meet(const std::string& key);
  void open_memory(const std::string& announced);
  [[nodiscard]] Descriptor watch(std::uint32_t member, const std::string& key) const;
  /// What that member has set in the store.
  [[nodiscard]] std::string hear_of(std::uint32_t member, const std::string& key) const;
  /// "member 1 (rank 3)": before its process is known.
  [[nodiscard]] std::string unmet(std::uint32_t member) const;
  [[nodiscard]] std::byte* at(std::size_t offset) const noexcept { return mapping_->data() + offset; }

  const GroupSpec spec_;
  const Layout layout_;
  TransportHost host_;
  std::unique_ptr<Mapping> mapping_;
  Header* header_ = nullptr;
  std::optional<Places> places_;
  std::atomic<std::int64_t> next_look_ = 0;
  std::vector<Descriptor> pidfds_;  ///< readable once that member's process has ended; none of this one
};

}  // namespace shm
