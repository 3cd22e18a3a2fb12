#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <shardrun/sdk/transport/clock.hpp>
#include <shardrun/sdk/transport/core_wait.hpp>
#include <shardrun/sdk/transport/group.hpp>
#include <shardrun/sdk/transport/worker.hpp>
#include <shared_mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "transports/shm/control.h"
#include "transports/shm/memory.h"

namespace shardrun::shm_transport {

/// A posted message, as its sender or its receiver sees it.
struct Message {
  MessageSlot* slot = nullptr;
  std::uint64_t number = 0;
  std::uint64_t id = 0;
  std::uint64_t bytes = 0;
  Protocol protocol = Protocol::mapped;
  MemoryRef memory = {};              ///< mapped: the sender's buffer
  const std::byte* data = nullptr;    ///< eager: where the receiver reads the bytes
  std::vector<std::byte> saved = {};  ///< eager: a copy of the bytes, once the slot was released
};

/// The ring of messages from this member to one other. Only one thread at a time may use it.
class SendRing {
 public:
  explicit SendRing(const Pair& pair) noexcept : pair_(pair) {}

  /// Whether `messages` more messages fit. If this starts the ring anew, every earlier slot has been released.
  [[nodiscard]] bool has_room(std::uint32_t messages) noexcept;
  /// Posts one message. Its protocol is
  /// - eager if it has few bytes and an eager buffer is free: the sender may reuse `data` at once;
  /// - mapped if `memory` tells the receiver how to map the buffer;
  /// - in pieces otherwise.
  /// REQUIRES: has_room. The caller notifies the receiver.
  Message post(std::uint64_t id, const std::byte* data, std::uint64_t bytes, const std::optional<MemoryRef>& memory);
  /// Whether the sender may reuse its buffer.
  [[nodiscard]] static bool is_done(const Message& message) noexcept {
    return message.protocol == Protocol::eager || message.slot->done.load() == message.number;
  }
  /// Writes as many pieces as fit of a message that the receiver requested. `written`: the bytes written so far.
  /// Returns whether it wrote any.
  bool write_pieces(const Message& message, const std::byte* data, std::uint64_t& written) noexcept;

 private:
  Pair pair_;
  std::uint32_t used_slots_ = 0;
  std::uint32_t used_buffers_ = 0;
  std::uint64_t posted_ = 0;
  std::uint64_t pieces_ = 0;
};

/// The ring of messages from one other member to this one. It accepts messages in the order of sending and matches them
/// by id, so an unmatched message does not block later ones. Only one thread at a time may use it.
class ReceiveRing {
 public:
  explicit ReceiveRing(const Pair& pair);

  /// Accepts every message that has arrived.
  void poll();
  /// Removes and returns the first accepted message with that id.
  [[nodiscard]] std::optional<Message> match(std::uint64_t id);
  /// Keeps the allocation of a message that has been read, for a later message.
  void recycle(Message& message) noexcept;
  /// Releases the slots and eager buffers of all accepted messages to the sender. Copies the bytes of messages that are
  /// not matched yet. Call it after reading the matched ones. Returns whether it released any; the caller then notifies
  /// the sender.
  [[nodiscard]] bool release();
  /// Tells the sender that it may reuse the message's buffer. The caller notifies the sender.
  static void complete(const Message& message) noexcept { message.slot->done.store(message.number); }
  /// Requests the message's pieces and reads those that have arrived. `read`: the bytes read so far. Returns whether
  /// the sender has to be notified. Only one message at a time is read in pieces; others wait.
  bool read_pieces(const Message& message, std::byte* to, std::uint64_t& read) noexcept;

 private:
  Pair pair_;
  std::uint32_t next_slot_ = 0;  ///< slot of the next message, unless the sender starts the ring anew
  std::uint64_t accepted_ = 0;
  std::uint64_t released_ = 0;
  std::uint64_t pieces_ = 0;
  std::uint64_t in_pieces_ = 0;                ///< number of the message that is being read in pieces, or 0
  std::vector<Message> unmatched_;             ///< accepted but not matched yet
  std::vector<std::vector<std::byte>> spare_;  ///< allocations for Message::saved
};

using shardrun::sdk::Buffer;
using shardrun::sdk::OpSpec;
using shardrun::sdk::Worker;

/// A range of memory that the process of this plugin registered.
struct Registration {
  std::byte* data = nullptr;
  std::uint64_t bytes = 0;
  int descriptor = -1;  ///< -1: other members cannot map it
  std::uint64_t inode = 0;
  std::uint64_t offset = 0;  ///< where `data` is in the file
};

/// What all groups of one transport share.
struct ShmTransportState {
  Config config;
  PeerMemory peer_memory;
  std::map<std::uint64_t, Registration> registrations;
  mutable std::shared_mutex registrations_mutex;     ///< because registration and preparation run on different threads
  std::map<std::string, std::uint64_t> generations;  ///< number of groups made so far, by prefix in the store
  std::atomic<std::uint64_t> wire_bytes = 0;
};

/// How other members map the buffer. Nothing if they cannot.
[[nodiscard]] std::optional<MemoryRef> mappable(const ShmTransportState& state, const Buffer& buffer,
                                                std::uint64_t bytes);

/// Number of blocks in a member's send buffer: one per member, or a single one that all readers share.
[[nodiscard]] constexpr std::uint32_t blocks_of(std::uint32_t opcode, std::uint32_t members) noexcept {
  const bool has_many = opcode == SR_OP_ALL_TO_ALL || opcode == SR_OP_ALL_TO_ALLV || opcode == SR_OP_SCATTER ||
                        opcode == SR_OP_REDUCE_SCATTER || opcode == SR_OP_REDUCE_SCATTERV;
  return has_many ? members : 1;
}

/// A member's memory for a collective.
struct Offer {
  MemoryRef send;
  MemoryRef recv;  ///< set only if others write into it
  bool is_mappable = false;
  std::uint64_t sent_bytes = 0;
  std::uint64_t block_bytes = 0;  ///< size of the largest block that it sends
};

/// How the members run a collective. It is the same on all of them, except for the pointers.
/// - mapped: each member accesses the others' buffers directly.
/// - staged: each member copies its data, piece by piece, into staging buffers in the op's segment.
struct Agreed {
  bool is_mapped = false;
  std::uint32_t rounds = 1;         ///< staged: the number of pieces of the largest block
  std::uint64_t piece_bytes = 0;    ///< staged: bytes of one block in a staging buffer
  std::uint64_t staging_bytes = 0;  ///< bytes of one staging buffer
  std::uint32_t members = 0;
  std::uint32_t staging_buffers = 2;  ///< per member
  OpSegment segment;
  std::vector<std::shared_ptr<std::byte>> sends;  ///< mapped: the send buffer of every other member, in this process
  std::vector<std::shared_ptr<std::byte>> recvs;
  std::vector<std::uint64_t> offsets;  ///< all_to_allv: where the block for this member begins in each member's send
                                       ///< buffer

  /// Sets every progress in a newly assigned segment to zero.
  void clear(std::byte* segment) const noexcept {
    for (std::uint32_t i = 0; i < staging_buffers * members; ++i) {
      reinterpret_cast<Progress*>(segment + i * stride())->reached.store(0);
    }
  }

  /// Bytes from one member's progress and staging buffer to the next.
  [[nodiscard]] std::size_t stride() const noexcept { return sizeof(Progress) + (is_small() ? 0 : staging_bytes); }
  [[nodiscard]] std::size_t segment_bytes() const noexcept { return std::size_t{staging_buffers} * members * stride(); }
  /// Step number `use` uses buffer use % staging_buffers.
  [[nodiscard]] Progress& progress(std::uint32_t member, std::uint64_t use) const noexcept {
    return *reinterpret_cast<Progress*>(at(member, use));
  }
  /// Whether a staging buffer fits into the cache line of its progress.
  [[nodiscard]] bool is_small() const noexcept { return staging_bytes <= sizeof(Progress) - sizeof(std::uint64_t); }
  /// A small buffer shares its progress's cache line, so that one transfer of the line brings both.
  [[nodiscard]] std::byte* staging(std::uint32_t member, std::uint64_t use) const noexcept {
    return at(member, use) + (is_small() ? sizeof(std::uint64_t) : sizeof(Progress));
  }

 private:
  [[nodiscard]] std::byte* at(std::uint32_t member, std::uint64_t use) const noexcept {
    return segment.data() + (use % staging_buffers * members + member) * stride();
  }
};

class Batch;

/// A group of ranks on one machine that access each other's memory.
class ShmGroup final : public shardrun::sdk::Group {
 public:
  ShmGroup(ShmTransportState& state, const GroupSpec& spec);
  ~ShmGroup() override = default;

  [[nodiscard]] std::unique_ptr<shardrun::sdk::Op> prepare(std::span<const OpSpec> ops,
                                                           sdk::Deadline deadline) override;
  void abort(std::string_view reason) noexcept override { fail({SR_ABORTED, std::string(reason)}); }
  [[nodiscard]] std::optional<TransportError> error() override { return worker_.failure(); }

  [[nodiscard]] Control& control() noexcept { return control_; }
  [[nodiscard]] Worker& worker() noexcept { return worker_; }
  [[nodiscard]] ShmTransportState& state() noexcept { return state_; }
  [[nodiscard]] const std::atomic<bool>& cancelled() const noexcept { return cancelled_; }
  [[nodiscard]] SendRing& send_ring(std::uint32_t to) noexcept { return send_rings_[to]; }
  [[nodiscard]] ReceiveRing& receive_ring(std::uint32_t from) noexcept { return receive_rings_[from]; }

  /// Batches use the rings one after the other, in the order of their starts. They run on the worker, except for a
  /// blocking batch that is alone: it runs on the caller's thread.
  struct Running {
    std::atomic<std::uint32_t> on_worker = 0;  ///< batches started on the worker and not complete
    Batch* on_caller = nullptr;
  };
  [[nodiscard]] Running& running() noexcept { return running_; }

  // Like the Worker's functions. A running task ends itself at its deadline, because it knows for which members it
  // waits. The worker ends a queued task a little later.
  void start(Worker::Task& task, sdk::Deadline deadline) { worker_.start(task, deadline); }
  [[nodiscard]] bool wait(Worker::Task& task, sdk::Deadline deadline) { return worker_.wait(task, deadline); }
  [[nodiscard]] shardrun::sdk::OpTimes times(const Worker::Task& task) { return worker_.times(task); }

  /// Times to which on_caller() has added; nothing if the op was complete without it.
  [[nodiscard]] static std::optional<shardrun::sdk::OpTimes> known(const shardrun::sdk::OpTimes& times) noexcept {
    return times.begun != 0 ? std::optional(times) : std::nullopt;
  }
  /// Runs an op on the caller's thread, and adds to its `times`. A failure there fails the group, too. `advance(until)`
  /// returns whether the op is complete. Returns false if `until` passed before the op's own deadline `own`. Past `own`
  /// throws `past_deadline()`, which names the missing members. Throws TransportError.
  template <class Advance, class PastDeadline>
  [[nodiscard]] bool on_caller(sdk::Deadline until, sdk::Deadline own, shardrun::sdk::OpTimes& times,
                               const Advance& advance, const PastDeadline& past_deadline) {
    check();
    const std::int64_t yielded = shardrun::sdk::yielded();
    times.begun = times.begun != 0 ? times.begun : shardrun::sdk::monotonic_now();
    try {
      const bool is_complete = advance(std::min(until, own));
      times.ended = shardrun::sdk::monotonic_now();
      times.yielded += shardrun::sdk::yielded() - yielded;
      if (is_complete) {
        return true;
      }
      if (!own.passed()) {
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
  /// Throws the group's failure, if it has failed.
  void check();

  /// For an op that was freed before it was complete: waits until no other member accesses its buffers. REQUIRES: the
  /// group has failed.
  void await_untouched() noexcept {
    control_.mark_failed();  // the thread on which the group failed may not have done it yet
    control_.await_untouched();
  }

  /// Maps memory that a member announced; see PeerMemory. Throws TransportError{SR_PEER_LOST} if the member's process
  /// has ended; the kernel reports that as one of several errors.
  [[nodiscard]] std::shared_ptr<std::byte> memory_of(std::uint32_t member, const MemoryRef& ref);

  /// Exchanges descriptions of the op with all members. On return every member has mapped the memory that it reads.
  /// Throws TransportError{SR_INVALID} on all members if their descriptions do not match.
  [[nodiscard]] Agreed agree(const OpSpec& op, const Offer& offer, sdk::Deadline deadline);

 private:
  /// Waits until every member has called it as often as this one.
  void barrier(const OpSpec& op, sdk::Deadline deadline);
  void publish(const OpSpec& op, const Offer& offer);
  /// REQUIRES: every member has published.
  [[nodiscard]] Agreed collect(const OpSpec& op);
  void choose_protocol(const OpSpec& op, Agreed& agreed) const;
  [[nodiscard]] std::optional<std::string> own_difference(const OpSpec& op) const;
  [[nodiscard]] std::optional<std::string> difference_of_others(const OpSpec& op) const;

  ShmTransportState& state_;
  Control control_;
  std::atomic<bool> cancelled_ = false;
  std::uint64_t barriers_ = 0;
  std::vector<SendRing> send_rings_;        ///< to each member
  std::vector<ReceiveRing> receive_rings_;  ///< from each member
  Running running_;
  Worker worker_;  // last, because its thread uses the others
};

[[nodiscard]] std::unique_ptr<shardrun::sdk::Op> make_collective(ShmGroup& group, const OpSpec& op,
                                                                 sdk::Deadline deadline);
[[nodiscard]] std::unique_ptr<shardrun::sdk::Op> make_batch(ShmGroup& group, std::span<const OpSpec> ops);

}  // namespace shardrun::shm_transport
