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

/// How far a member is, in a cache line of its own: it only grows.
struct alignas(64) Progress {
  std::atomic<std::uint64_t> reached;
};

/// Has the line here by the time it is written, though others read it last.
inline void prefetch_to_write(const Progress& line) noexcept {
#if defined(__x86_64__)
  __asm__ volatile("prefetchw %0" : : "m"(line.reached));  // GCC's own needs -mprfchw, and else reads
#else
  __builtin_prefetch(&line, 1);
#endif
}

/// How a message comes to its receiver.
enum class Carriage : std::uint32_t {
  enclosed,  ///< with the letter
  in_place,  ///< the receiver maps the sender's memory
  in_pieces  ///< piece by piece, as the receiver asks for it
};

inline constexpr std::uint32_t no_enclosure = UINT32_MAX;

/// A message that waits for its receiver: the n-th of those between two members has number n, from 1 on. The first
/// entries are used again as soon as the receiver has taken note of all, so that few are ever touched.
struct alignas(64) Post {
  std::atomic<std::uint64_t> number;  ///< of the message: written last
  std::atomic<std::uint64_t> done;    ///< the number of the message that the receiver has; not of enclosed ones
  std::uint64_t id;
  std::uint64_t bytes;
  Carriage carriage;
  std::uint32_t enclosure;
  std::byte text[24];  ///< what is enclosed, where it is that short, or what there is to map
};
static_assert(std::atomic<std::uint64_t>::is_always_lock_free && std::atomic<std::uint32_t>::is_always_lock_free);
static_assert(sizeof(Post) == 64 && offsetof(MemoryRef, bytes) == sizeof(Post::text));

/// The most sends to one member in one batch. Batches of one member are under way one after the other.
inline constexpr std::uint32_t posts_per_pair = 4096;

/// Texts that are enclosed at one time, and how long they are at most.
inline constexpr std::uint32_t enclosures_per_pair = 8;
inline constexpr std::uint64_t enclosure_bytes = 1024;

/// What goes piece by piece does so through so many places.
inline constexpr std::uint32_t pieces_per_pair = 4;
inline constexpr std::uint64_t piece_bytes = 32'768;

/// What the receiver of a pair tells the sender.
struct alignas(64) PairHead {
  std::atomic<std::uint64_t> noted;   ///< letters that it has, whose places and enclosures it needs no more
  std::atomic<std::uint64_t> wanted;  ///< the letter that it wants in pieces
  std::atomic<std::uint64_t> drawn;   ///< pieces that it has read, of all letters so far
};

struct alignas(64) PairFed {
  std::atomic<std::uint64_t> pieces;  ///< that the sender has put there, of all letters so far
};

/// What is between a sender and a receiver.
struct Pair {
  static constexpr std::size_t bytes = sizeof(PairHead) + sizeof(PairFed) + posts_per_pair * sizeof(Post) +
                                       enclosures_per_pair * enclosure_bytes + pieces_per_pair * piece_bytes;

  explicit Pair(std::byte* memory) noexcept
      : head(reinterpret_cast<PairHead*>(memory)),
        fed(reinterpret_cast<PairFed*>(head + 1)),
        posts(reinterpret_cast<Post*>(fed + 1)),
        enclosures(reinterpret_cast<std::byte*>(posts + posts_per_pair)),
        pieces(enclosures + enclosures_per_pair * enclosure_bytes) {}

  PairHead* head;
  PairFed* fed;
  Post* posts;
  std::byte* enclosures;
  std::byte* pieces;
};

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
  std::uint32_t is_mappable;          ///< others can map the buffers, which a collective in place needs
  MemoryRef send;
  MemoryRef recv;
  std::uint64_t sent_bytes;
  std::uint64_t block_bytes;
  alignas(64) std::atomic<std::uint32_t> touching;  ///< threads of it that may be at others' memory
};

/// Of a place that is not dealt.
inline constexpr std::uint64_t no_place = UINT64_MAX;

struct alignas(64) Header {
  std::atomic<std::uint32_t> waiting;  ///< who would have to be woken; seldom changes
  std::uint64_t place;                 ///< of the collective that is being prepared, as the first member dealt it
  alignas(64) std::atomic<std::uint32_t> bell;  ///< futex: rung at a change that somebody may wait for
};

constexpr std::size_t align_up(std::size_t bytes) { return (bytes + 63) / 64 * 64; }

/// Where what begins in the memory of a group of n. Reserved, not used: pages are given as they are touched.
struct Layout {
  explicit constexpr Layout(std::size_t n)
      : members(align_up(sizeof(Header))),
        preparing(members + n * sizeof(Member)),
        told(preparing + n * sizeof(Progress)),
        pairs(align_up(told + n * n * sizeof(Told))),
        ops(pairs + n * n * Pair::bytes),
        end(ops + op_bytes) {}

  static constexpr std::size_t op_bytes = std::size_t{1} << 30U;

  std::size_t members;
  std::size_t preparing;
  std::size_t told;
  std::size_t pairs;
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
  [[nodiscard]] Pair pair(std::uint32_t from, std::uint32_t to) const noexcept;
  [[nodiscard]] Progress& preparing(std::uint32_t index) const noexcept;

  /// For the first member, before a meeting: all get the same from `take_place` after it, or none. Null where none is
  /// asked for.
  std::byte* deal_place(std::optional<std::size_t> bytes);
  [[nodiscard]] Place take_place() const noexcept {
    return header_->place == no_place ? Place() : places_->take(header_->place);
  }

  /// "member 1 (rank 3, pid 4711)"
  [[nodiscard]] std::string name_of(std::uint32_t member) const;
  /// "PREFIXmember 1 (rank 3, pid 4711) is gone"
  [[nodiscard]] TransportError gone(std::uint32_t member, const std::string& prefix = "") const;
  /// "WHAT, waiting for member 1 (rank 3, pid 4711)", of the members that did not do their part.
  [[nodiscard]] TransportError past_deadline(const std::string& what, const std::vector<std::uint32_t>& missing) const;
  /// Whether that member's process, whose memory could not be opened, has ended or does so now.
  [[nodiscard]] bool is_gone(std::uint32_t member) const noexcept;

  /// Wakes whoever waits, after a change of what they look at. Both are sequentially consistent: either the change is
  /// seen by who goes to sleep, or the sleeper is seen here.
  void ring() noexcept {
    if (header_->waiting.load() != 0) {
      wake();
    }
  }
  /// Tells the other members that this one has failed: they begin to touch its memory no more.
  void mark_failed() noexcept;

  /// `work` reads or writes the memory of members, those that `whose` says. A member that has failed may free what is
  /// touched, once nobody is at it: either its failure is seen here, or `await_untouched` there sees that this one is
  /// at work. Throws SR_ABORTED where one of them has failed, also by the end of the work: what was read may be wrong.
  template <class Whose, class Work>
  void touch(const Whose& whose, const Work& work) {
    const Mark mark(member(rank()).touching);
    require_well(whose);
    work();
    require_well(whose);
  }
  /// REQUIRES: mark_failed. Returns once no other member is at work that it began before it could see that.
  void await_untouched() noexcept;

  /// Whether what is waited for takes that member's part.
  using Needs = std::function<bool(std::uint32_t member)>;
  [[nodiscard]] static bool everyone(std::uint32_t) noexcept { return true; }

  /// When one who only polls looks at the others again.
  using NextLook = std::int64_t;

  /// Waits until `ready`, which looks by sequentially consistent loads: by yields, and then on the futex. False where
  /// `deadline` passed before; one that is not positive only looks. Throws SR_ABORTED where the job is to end,
  /// `cancelled` says so or a member that is needed has failed, SR_PEER_LOST where one is gone.
  template <class Ready>
  [[nodiscard]] bool wait(std::int64_t deadline, NextLook& next_look, const std::atomic<bool>& cancelled,
                          const Needs& needs, const Ready& ready) {
    if (deadline <= 0) {
      return ready() || (is_time_to_look(next_look) && is_ready_after_all(cancelled, needs, ready));
    }
    Yielding yielding(*this, deadline);
    do {
      for (int look = 0; look < looks_; ++look) {
        if (ready()) {
          return true;
        }
        pause();
      }
    } while (yielding.turn());
    for (;;) {
      header_->waiting.fetch_add(1);
      const std::uint32_t seen = header_->bell.load();
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

  /// A few yields, which end with the deadline, and after some milliseconds in any case: beside a process that computes
  /// each of them costs a whole time slice.
  class Yielding {
   public:
    Yielding(const Control& control, std::int64_t deadline) noexcept : control_(control), until_(deadline) {}
    /// False once that is enough.
    [[nodiscard]] bool turn() noexcept;

   private:
    const Control& control_;
    std::int64_t until_;
    int turns_ = 0;
  };
  void wake() noexcept;
  void sleep(std::uint32_t seen, std::int64_t deadline) const noexcept;
  /// Not at every glance of one who polls: a look asks the kernel.
  [[nodiscard]] bool is_time_to_look(NextLook& next_look) const noexcept;

  /// Why what is waited for will not come any more.
  struct Obstacle {
    enum class Kind { aborted, gone, failed };
    Kind kind = Kind::aborted;
    std::uint32_t member = 0;
    bool operator==(const Obstacle&) const = default;
  };
  [[nodiscard]] std::optional<Obstacle> obstacle(const std::atomic<bool>& cancelled, const Needs& needs) const;
  [[nodiscard]] TransportError error_of(const Obstacle& obstacle) const;
  [[nodiscard]] std::optional<std::uint32_t> first_gone(const Needs& needs) const;

  /// Counts a thread that touches others' memory.
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

  /// Throws an obstacle that is still one after a look at what has come: a member may do its part and end just before
  /// it is looked at, and `ready` may take that part while another's is still due.
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

  void meet(const std::string& key);
  void open_memory(const std::string& announced);
  [[nodiscard]] Descriptor watch(std::uint32_t member, const std::string& key) const;
  /// What that member has set in the store.
  [[nodiscard]] std::string hear_of(std::uint32_t member, const std::string& key) const;
  [[nodiscard]] std::byte* at(std::size_t offset) const noexcept { return mapping_->data() + offset; }

  const GroupSpec spec_;
  const Layout layout_;
  TransportHost host_;
  std::unique_ptr<Mapping> mapping_;
  Header* header_ = nullptr;
  std::optional<Places> places_;
  // A member that has a core to itself looks a few times before it yields, and yields longer.
  int looks_;
  int yields_;
  std::vector<Descriptor> pidfds_;  ///< readable once that member's process has ended; none of this one
};

}  // namespace shm
