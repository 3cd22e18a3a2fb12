#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <shardrun/sdk/transport/agreement.hpp>
#include <shardrun/sdk/transport/group.hpp>
#include <string>
#include <vector>

#include "transports/shm/memory.h"

namespace shardrun::shm_transport {

using shardrun::sdk::Claim;
using shardrun::sdk::Config;
using shardrun::sdk::GroupSpec;
using shardrun::sdk::TransportError;
using shardrun::sdk::TransportHost;

/// The number of a member's latest barrier, or step of a collective, in its own cache line. It only grows.
struct alignas(64) Progress {
  std::atomic<std::uint64_t> reached;
};

/// Fetches the cache line for writing in advance. Otherwise the write would wait for it, because others read it last.
inline void prefetch_to_write(const Progress& line) noexcept {
#if defined(__x86_64__)
  __asm__ volatile("prefetchw %0" : : "m"(line.reached));  // GCC's builtin prefetches to read without -mprfchw
#else
  __builtin_prefetch(&line, 1);
#endif
}

/// How a message's bytes reach the receiver.
enum class Protocol : std::uint32_t {
  eager,     ///< copied into the message's slot or an eager buffer when it is posted
  mapped,    ///< the receiver maps the sender's memory and copies from it
  in_pieces  ///< through the pair's piece buffers, once the receiver requests them
};

/// MessageSlot::eager_buffer of a message whose bytes are in its slot.
inline constexpr std::uint32_t no_eager_buffer = UINT32_MAX;

/// One slot of the ring of messages between two members. Messages of a pair are numbered from 1. If room is short, or
/// a page of slots was used, and the receiver has released all slots, the sender starts again at the first slot.
struct alignas(64) MessageSlot {
  std::atomic<std::uint64_t> number;  ///< the message's number; written last
  std::atomic<std::uint64_t> done;    ///< number of the message that the receiver completed; not used by eager messages
  std::uint64_t id;
  std::uint64_t bytes;
  Protocol protocol;
  std::uint32_t eager_buffer;
  std::byte data[24];  ///< eager: the bytes, if they fit. mapped: a MemoryRef without its `bytes`
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<std::uint32_t>::is_always_lock_free);
static_assert(sizeof(MessageSlot) == 64 && offsetof(MemoryRef, bytes) == sizeof(MessageSlot::data));

/// The largest number of sends to one member in one batch. A member runs its batches one after the other.
inline constexpr std::uint32_t slots_per_pair = 4096;

/// Buffers for eager messages that do not fit into their slots.
inline constexpr std::uint32_t eager_buffers_per_pair = 8;
inline constexpr std::uint64_t eager_bytes = 1024;

/// Buffers for messages in pieces.
inline constexpr std::uint32_t pieces_per_pair = 4;
inline constexpr std::uint64_t piece_bytes = 32'768;

/// The part of a pair's state that the receiver writes and the sender reads.
struct alignas(64) ReceiverState {
  std::atomic<std::uint64_t> released;     ///< number of messages whose slots and eager buffers the sender may reuse
  std::atomic<std::uint64_t> requested;    ///< number of the message that the receiver wants in pieces
  std::atomic<std::uint64_t> pieces_read;  ///< number of pieces, of all messages so far
};

/// The part of a pair's state that the sender writes and the receiver reads.
struct alignas(64) SenderState {
  std::atomic<std::uint64_t> pieces_written;  ///< number of pieces, of all messages so far
};

/// The memory through which one member sends to another.
struct Pair {
  static constexpr std::size_t bytes = sizeof(ReceiverState) + sizeof(SenderState) +
                                       slots_per_pair * sizeof(MessageSlot) + eager_buffers_per_pair * eager_bytes +
                                       pieces_per_pair * piece_bytes;

  explicit Pair(std::byte* memory) noexcept
      : receiver(reinterpret_cast<ReceiverState*>(memory)),
        sender(reinterpret_cast<SenderState*>(receiver + 1)),
        slots(reinterpret_cast<MessageSlot*>(sender + 1)),
        eager_buffers(reinterpret_cast<std::byte*>(slots + slots_per_pair)),
        pieces(eager_buffers + eager_buffers_per_pair * eager_bytes) {}

  ReceiverState* receiver;
  SenderState* sender;
  MessageSlot* slots;
  std::byte* eager_buffers;
  std::byte* pieces;
};

/// One member's claim to another about the op that it prepares.
struct PeerClaim {
  Claim claim;
  std::uint64_t offset;  ///< for all_to_allv: where the other's block begins in this member's send buffer
};

/// One member's description of itself and of the op that it prepares.
struct alignas(64) Member {
  std::int32_t pid;
  std::uint32_t disagrees;            ///< it found a mismatch between its op and another member's
  std::atomic<std::uint32_t> failed;  ///< not zero: this member's group has failed
  std::uint32_t is_mappable;          ///< others can map this member's buffers
  MemoryRef send;
  MemoryRef recv;
  std::uint64_t sent_bytes;
  std::uint64_t block_bytes;
  alignas(64) std::atomic<std::uint32_t> touching;  ///< threads of this member that may be accessing others' memory
};

/// The value of Header::segment if none is assigned.
inline constexpr std::uint64_t no_segment = UINT64_MAX;

struct alignas(64) Header {
  std::atomic<std::uint32_t> waiting;  ///< threads that sleep or are about to; changes seldom
  std::uint64_t segment;               ///< offset that the first member assigned to the collective being prepared
  alignas(64) std::atomic<std::uint32_t> wakeups;  ///< futex word: counts wakeups
};

constexpr std::size_t align_up(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

/// Offsets in the control memory of a group of n members. The memory is reserved; the kernel supplies pages when they
/// are touched.
struct ControlLayout {
  explicit constexpr ControlLayout(std::size_t n)
      : members(align_up(sizeof(Header))),
        preparing(members + n * sizeof(Member)),
        claims(preparing + n * sizeof(Progress)),
        pairs(align_up(claims + n * n * sizeof(PeerClaim))),
        ops(pairs + n * n * Pair::bytes) {}

  std::size_t members;
  std::size_t preparing;
  std::size_t claims;
  std::size_t pairs;
  std::size_t ops;  ///< from here to the end of the memory
};

/// Bytes that the creator of a group's memory reserves for ops: 1 GiB, or a sixteenth of the limit of its address space
/// (ulimit -v). The other members are assumed to have the same limit.
[[nodiscard]] std::size_t bytes_for_ops();

/// The memory that a group shares: the first member creates it and the others map it. It has the same layout on all.
class Control {
 public:
  /// Waits for the members until the spec's deadline. `key`: a prefix in the store for this group alone. Throws
  /// TransportError.
  Control(const Config& config, const GroupSpec& spec, const std::string& key);
  Control(const Control&) = delete;
  Control& operator=(const Control&) = delete;
  ~Control() = default;

  [[nodiscard]] std::uint32_t rank() const noexcept { return spec_.rank; }
  [[nodiscard]] std::uint32_t size() const noexcept { return spec_.size(); }
  [[nodiscard]] Member& member(std::uint32_t index) const noexcept;
  [[nodiscard]] PeerClaim& claim(std::uint32_t from, std::uint32_t to) const noexcept;
  [[nodiscard]] Pair pair(std::uint32_t from, std::uint32_t to) const noexcept;
  [[nodiscard]] Progress& preparing(std::uint32_t index) const noexcept;

  /// Assigns a segment to the collective that is being prepared; without `bytes`, assigns none and returns null. Only
  /// the first member calls it, before a barrier. After the barrier `assigned_segment` tells every member.
  std::byte* assign_segment(std::optional<std::size_t> bytes);
  [[nodiscard]] OpSegment assigned_segment() const noexcept {
    return header_->segment == no_segment ? OpSegment() : segments_->hold(header_->segment);
  }

  /// A member's name for messages: "member 1 (rank 3, pid 4711)".
  [[nodiscard]] std::string name_of(std::uint32_t member) const;
  /// The error "PREFIXmember 1 (rank 3, pid 4711) is gone".
  [[nodiscard]] TransportError gone(std::uint32_t member, const std::string& prefix = "") const;
  /// The error "WHAT, waiting for member 1 (rank 3, pid 4711)", for the members that did not do their part.
  [[nodiscard]] TransportError past_deadline(const std::string& what, const std::vector<std::uint32_t>& missing) const;
  /// Whether a member's process ends within 200 ms, or has ended. Used after its memory could not be opened.
  [[nodiscard]] bool is_gone(std::uint32_t member) const noexcept;

  /// Wakes waiting threads, after a change for which one of them may wait. The change and this load are sequentially
  /// consistent: either a thread that is about to sleep sees the change, or this function sees that thread.
  void notify() noexcept {
    if (header_->waiting.load() != 0) {
      wake();
    }
  }
  /// Tells the other members that this one has failed. They then start no further access to its memory.
  void mark_failed() noexcept;

  /// Runs `work`, which reads or writes the memory of the members for which `whose` is true. A member that failed frees
  /// its memory only after its `await_untouched`. So either its failure is seen here, or the member waits for this
  /// access. Throws SR_ABORTED if one of them has failed by the end of the work: the data read may be wrong.
  template <class Whose, class Work>
  void touch(const Whose& whose, const Work& work) {
    const Mark mark(member(rank()).touching);
    require_well(whose);
    work();
    require_well(whose);
  }
  /// Waits until no other member accesses this one's memory. REQUIRES: mark_failed has been called.
  void await_untouched() noexcept;

  /// Whether a wait depends on a member.
  using Needs = std::function<bool(std::uint32_t member)>;
  [[nodiscard]] static bool everyone(std::uint32_t) noexcept { return true; }

  /// When a caller that only polls checks the other members again, by the host's clock.
  using NextCheck = sdk::Deadline;

  /// Waits until `ready()`, which uses sequentially consistent loads. Spins, then yields, then sleeps on the futex.
  /// Returns false once `deadline` has passed. Deadline::past() only polls. Throws
  /// - SR_ABORTED if the job is ending, `cancelled` is set, or a needed member has failed;
  /// - SR_PEER_LOST if the process of a needed member has ended.
  template <class Ready>
  [[nodiscard]] bool wait(sdk::Deadline deadline, NextCheck& next_check, const std::atomic<bool>& cancelled,
                          const Needs& needs, const Ready& ready) {
    if (deadline == sdk::Deadline::past()) {
      return ready() || (is_time_to_check(next_check) && is_ready_after_all(cancelled, needs, ready));
    }
    Yielding yielding(*this, deadline);
    do {
      for (int i = 0; i < spins_; ++i) {
        if (ready()) {
          return true;
        }
        pause();
      }
    } while (yielding.yield());
    for (;;) {
      header_->waiting.fetch_add(1);
      const std::uint32_t seen = header_->wakeups.load();
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
  static void pause() noexcept;

  /// Yields a limited number of times, within the deadline and a few milliseconds, because beside a process that
  /// computes each yield takes a whole time slice. Adds the time of the yields to sdk::yielded(). Of the last yield at
  /// most a time slice counts: in the rest of it, the thread was not waiting but had no core.
  class Yielding {
   public:
    Yielding(const Control& control, sdk::Deadline deadline) noexcept : control_(control), until_(deadline) {}
    Yielding(const Yielding&) = delete;
    Yielding& operator=(const Yielding&) = delete;
    ~Yielding();
    /// Returns false once the limit is reached.
    [[nodiscard]] bool yield() noexcept;

   private:
    const Control& control_;
    sdk::Deadline until_;
    std::int64_t end_ = 0;   ///< by the coarse clock; set by the first yield
    std::int64_t last_ = 0;  ///< how long the last yield took
    int count_ = 0;
  };
  void wake() noexcept;
  void sleep(std::uint32_t seen, sdk::Deadline deadline) const noexcept;
  /// Limits how often a poll checks the members, because each check is a system call.
  [[nodiscard]] bool is_time_to_check(NextCheck& next_check) const noexcept;

  /// Why a wait cannot succeed.
  struct Obstacle {
    enum class Kind { aborted, gone, failed };
    Kind kind = Kind::aborted;
    std::uint32_t member = 0;
    bool operator==(const Obstacle&) const = default;
  };
  [[nodiscard]] std::optional<Obstacle> obstacle(const std::atomic<bool>& cancelled, const Needs& needs) const;
  [[nodiscard]] TransportError error_of(const Obstacle& obstacle) const;
  [[nodiscard]] std::optional<std::uint32_t> first_gone(const Needs& needs) const;

  /// Counts this thread in Member::touching while it exists.
  class Mark {
   public:
    explicit Mark(std::atomic<std::uint32_t>& touching) noexcept : touching_(touching) { touching_.fetch_add(1); }
    Mark(const Mark&) = delete;
    Mark& operator=(const Mark&) = delete;
    ~Mark() { touching_.fetch_sub(1); }

   private:
    std::atomic<std::uint32_t>& touching_;
  };

  template <class Whose>
  void require_well(const Whose& whose) const {
    for (std::uint32_t m = 0; m < size(); ++m) {
      if (m != rank() && member(m).failed.load() != 0 && whose(m)) {
        throw TransportError(error_of({Obstacle::Kind::failed, m}));
      }
    }
  }

  /// Throws if two checks in a row find an obstacle, with `ready()` false between them. One check is not enough: a
  /// member may do its part and end just before the check.
  template <class Ready>
  [[nodiscard]] bool is_ready_after_all(const std::atomic<bool>& cancelled, const Needs& needs, const Ready& ready) {
    std::optional<Obstacle> before;
    while (const std::optional<Obstacle> found = obstacle(cancelled, needs)) {
      if (found == before) {
        throw TransportError(error_of(*found));
      }
      if (ready()) {
        return true;
      }
      before = found;
    }
    return false;
  }

  void connect(const std::string& key);
  void open_memory(const std::string& announced);
  [[nodiscard]] Descriptor watch(std::uint32_t member, const std::string& key) const;
  /// The value that the member sets for a key in the store.
  [[nodiscard]] std::string await_key(std::uint32_t member, const std::string& key) const;
  [[nodiscard]] std::byte* at(std::size_t offset) const noexcept { return mapping_->data() + offset; }

  const GroupSpec spec_;
  const ControlLayout layout_;
  TransportHost host_;
  std::unique_ptr<Mapping> mapping_;
  Header* header_ = nullptr;
  std::optional<SegmentPool> segments_;
  // Polls before each yield, and yields before a sleep. Both are higher if every rank has a core of its own.
  int spins_;
  int yields_;
  std::vector<Descriptor> pidfds_;  ///< readable once the member's process has ended; empty for this member
};

}  // namespace shardrun::shm_transport
