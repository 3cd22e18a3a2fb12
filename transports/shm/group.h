#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <shardrun/sdk/transport.hpp>
#include <shardrun/sdk/worker.hpp>
#include <shared_mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "control.h"
#include "mail.h"
#include "memory.h"

namespace shm {

using shardrun::sdk::Buffer;
using shardrun::sdk::OpSpec;
using shardrun::sdk::Worker;

/// Memory of the host, as it was registered.
struct Registration {
  std::byte* data = nullptr;
  std::uint64_t bytes = 0;
  int descriptor = -1;  ///< -1: peers cannot map it
  std::uint64_t inode = 0;
  std::uint64_t offset = 0;  ///< of `data` in the file
};

/// What the groups of one transport share.
struct Shared {
  Config config;
  Peers peers;
  std::map<std::uint64_t, Registration> registrations;
  mutable std::shared_mutex registrations_mutex;     ///< memory is registered while ops are prepared
  std::map<std::string, std::uint64_t> generations;  ///< groups made so far, by their name in the store
  std::atomic<std::uint64_t> wire_bytes = 0;
};

/// A buffer in words that peers can map it by; nothing where they cannot.
[[nodiscard]] std::optional<MemoryRef> mappable(const Shared& shared, const Buffer& buffer, std::uint64_t bytes);

/// How many blocks a member's send buffer has: one for each member, or one that is for all who read it.
[[nodiscard]] constexpr std::uint32_t blocks_of(std::uint32_t opcode, std::uint32_t members) noexcept {
  const bool has_many = opcode == SR_OP_ALL_TO_ALL || opcode == SR_OP_ALL_TO_ALLV || opcode == SR_OP_SCATTER ||
                        opcode == SR_OP_REDUCE_SCATTER || opcode == SR_OP_REDUCE_SCATTERV;
  return has_many ? members : 1;
}

/// What a member brings to a collective.
struct Offer {
  MemoryRef send;
  MemoryRef recv;  ///< where others write into it
  bool is_mappable = false;
  std::uint64_t sent_bytes = 0;
  std::uint64_t block_bytes = 0;  ///< the largest block of what is sent
};

/// How the members of a collective have agreed to carry it out: the same on all of them, but for the pointers.
struct Agreed {
  bool in_place = false;
  std::uint32_t rounds = 1;       ///< by slots: pieces of the largest block
  std::uint64_t piece_bytes = 0;  ///< of a block in a slot; whole cache lines
  std::uint64_t slot_bytes = 0;
  std::uint32_t members = 0;
  std::uint32_t turns = 2;  ///< slots of a member
  Place place;
  std::vector<std::shared_ptr<std::byte>> sends;  ///< in place: every member's in this process, but this one's
  std::vector<std::shared_ptr<std::byte>> recvs;
  std::vector<std::uint64_t> offsets;  ///< all_to_allv: where in a member's send its block for this one begins

  /// Nobody is anywhere yet, in a place that is about to be taken.
  void clear(std::byte* place) const noexcept {
    for (std::uint32_t i = 0; i < turns * members; ++i) {
      reinterpret_cast<Progress*>(place + i * stride())->reached.store(0);
    }
  }

  /// Of the place: for each member in each turn, how far it is and its slot.
  [[nodiscard]] std::size_t stride() const noexcept { return sizeof(Progress) + (is_small() ? 0 : slot_bytes); }
  [[nodiscard]] std::size_t place_bytes() const noexcept { return std::size_t{turns} * members * stride(); }
  [[nodiscard]] Progress& seat(std::uint32_t member, std::uint64_t turn) const noexcept {
    return *reinterpret_cast<Progress*>(at(member, turn));
  }
  /// Whether a slot is in the cache line of its progress.
  [[nodiscard]] bool is_small() const noexcept { return slot_bytes <= sizeof(Progress) - sizeof(std::uint64_t); }
  /// A few bytes come in one cache line with the news that they are there.
  [[nodiscard]] std::byte* slot(std::uint32_t member, std::uint64_t turn) const noexcept {
    return at(member, turn) + (is_small() ? sizeof(std::uint64_t) : sizeof(Progress));
  }

 private:
  [[nodiscard]] std::byte* at(std::uint32_t member, std::uint64_t turn) const noexcept {
    return place.data() + (turn % turns * members + member) * stride();
  }
};

class Batch;

/// Members on one machine that read each other's memory.
class Group final : public shardrun::sdk::Group {
 public:
  Group(Shared& shared, const GroupSpec& spec);
  ~Group() override = default;

  [[nodiscard]] std::unique_ptr<shardrun::sdk::Op> prepare(std::span<const OpSpec> ops, std::int64_t deadline) override;
  void abort(std::string_view reason) noexcept override { fail({SR_ABORTED, std::string(reason)}); }
  [[nodiscard]] std::optional<TransportError> error() override { return worker_.failure(); }

  [[nodiscard]] Control& control() noexcept { return control_; }
  [[nodiscard]] Worker& worker() noexcept { return worker_; }
  [[nodiscard]] Shared& shared() noexcept { return shared_; }
  [[nodiscard]] const std::atomic<bool>& cancelled() const noexcept { return cancelled_; }
  [[nodiscard]] Outbox& outbox(std::uint32_t to) noexcept { return outboxes_[to]; }
  [[nodiscard]] Inbox& inbox(std::uint32_t from) noexcept { return inboxes_[from]; }

  /// Batches use the boxes one after the other, in the order of their starts: on the worker, or, one alone, on the
  /// caller's thread.
  struct Turns {
    std::atomic<std::uint32_t> on_worker = 0;  ///< started there and not complete
    Batch* on_caller = nullptr;
  };
  [[nodiscard]] Turns& turns() noexcept { return turns_; }

  // What Worker says of these, but a task that runs ends itself by its deadline, as it knows for whom it waits. The
  // worker ends, a little later, one that waits its turn.
  void start(Worker::Task& task, std::int64_t deadline) { worker_.start(task, deadline); }
  [[nodiscard]] bool wait(Worker::Task& task, std::int64_t deadline) { return worker_.wait(task, deadline); }
  [[nodiscard]] shardrun::sdk::OpTimes times(const Worker::Task& task) {
    const Worker::Times times = worker_.times(task);
    return {times.begun, times.ended};
  }

  /// What the worker does of an op, on the caller's thread: what goes wrong there is the group's end too. `advance`
  /// goes on until the op is complete, or a time; false where `until` passed before, and not yet the op's `own`
  /// deadline, past which it fails with `past_deadline`, which says who is missing. Throws TransportError.
  template <class Advance, class PastDeadline>
  [[nodiscard]] bool on_caller(std::int64_t until, std::int64_t own, const Advance& advance,
                               const PastDeadline& past_deadline) {
    check();
    try {
      if (advance(std::min(until, own))) {
        return true;
      }
      if (shardrun::sdk::steady_now() < own) {
        return false;
      }
      throw past_deadline();
    } catch (const TransportError& error) {
      fail(error);
    } catch (const std::exception& error) {
      fail({SR_INTERNAL, error.what()});
    }
    throw TransportError(*worker_.failure());
  }

  void fail(const TransportError& failure) noexcept { worker_.fail(failure); }
  /// Throws why the group failed, if it has.
  void check();

  /// For an op whose buffers are this member's again, though it was not complete: returns once no other member touches
  /// them. The group has failed.
  void await_untouched() noexcept {
    control_.mark_failed();  // the thread on which it failed may be about to
    control_.await_untouched();
  }

  /// Memory that a member announced; see Peers. Throws TransportError{SR_PEER_LOST} where its process has ended: what
  /// the kernel answers then depends on who asks and when.
  [[nodiscard]] std::shared_ptr<std::byte> memory_of(std::uint32_t member, const MemoryRef& ref);

  /// Tells the others what this member prepares, and hears what they do: on return, all have mapped what they read.
  /// Throws TransportError{SR_INVALID} on all members where they do not mean the same op.
  [[nodiscard]] Agreed agree(const OpSpec& op, const Offer& offer, std::int64_t deadline);

 private:
  /// Waits until all members have called it as often.
  void meet(const OpSpec& op, std::int64_t deadline);
  void tell(const OpSpec& op, const Offer& offer);
  /// Once all have told.
  [[nodiscard]] Agreed hear(const OpSpec& op);
  void choose_way(const OpSpec& op, Agreed& agreed) const;
  [[nodiscard]] std::optional<std::string> own_difference(const OpSpec& op) const;
  [[nodiscard]] std::optional<std::string> difference_of_others(const OpSpec& op) const;

  Shared& shared_;
  Control control_;
  std::atomic<bool> cancelled_ = false;
  std::uint64_t meetings_ = 0;
  std::vector<Outbox> outboxes_;  ///< to each member
  std::vector<Inbox> inboxes_;    ///< from each member
  Turns turns_;
  Worker worker_;  // last: its thread uses the rest
};

[[nodiscard]] std::unique_ptr<shardrun::sdk::Op> make_collective(Group& group, const OpSpec& op, std::int64_t deadline);
[[nodiscard]] std::unique_ptr<shardrun::sdk::Op> make_batch(Group& group, std::span<const OpSpec> ops);

}  // namespace shm
