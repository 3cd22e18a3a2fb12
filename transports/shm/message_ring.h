#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "transports/shm/control.h"

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

/// The ring of messages from this member to one other. One thread at a time uses it.
class SendRing {
 public:
  explicit SendRing(const Pair& pair) noexcept : pair_(pair) {}

  /// Whether `messages` more messages fit. Where it starts the ring anew, every earlier slot has been released.
  [[nodiscard]] bool has_room(std::uint32_t messages) noexcept;
  /// Posts one message. Its protocol is
  /// - eager for few bytes, while an eager buffer is free: the sender may reuse `data` at once;
  /// - mapped where `memory` tells the receiver how to map the buffer;
  /// - in pieces otherwise.
  /// REQUIRES: has_room. The caller notifies the receiver.
  Message post(std::uint64_t id, const std::byte* data, std::uint64_t bytes, const std::optional<MemoryRef>& memory);
  /// Whether the sender may reuse its buffer.
  [[nodiscard]] static bool is_done(const Message& message) noexcept {
    return message.protocol == Protocol::eager || message.slot->done.load() == message.number;
  }
  /// Writes pieces of a message that the receiver requested, as many as fit. `written`: bytes of it so far. Returns
  /// whether it wrote any.
  bool write_pieces(const Message& message, const std::byte* data, std::uint64_t& written) noexcept;

 private:
  Pair pair_;
  std::uint32_t used_slots_ = 0;
  std::uint32_t used_buffers_ = 0;
  std::uint64_t posted_ = 0;
  std::uint64_t pieces_ = 0;
};

/// The ring of messages from one other member to this one. It accepts messages in the order of sending and matches them
/// by id, so an unmatched message does not block the ones behind it. One thread at a time uses it.
class ReceiveRing {
 public:
  explicit ReceiveRing(const Pair& pair);

  /// Accepts every message that has arrived.
  void poll();
  /// Returns and removes the first accepted message with that id.
  [[nodiscard]] std::optional<Message> match(std::uint64_t id);
  /// Keeps the allocation of a message that was read, for a later one.
  void recycle(Message& message) noexcept;
  /// Releases the slots and eager buffers of all accepted messages to the sender. Copies the bytes of those not matched
  /// yet. Call it after reading the matched ones. Returns whether it released any; then the caller notifies the sender.
  [[nodiscard]] bool release();
  /// Gives the sender its buffer back. The caller notifies the sender.
  static void complete(const Message& message) noexcept { message.slot->done.store(message.number); }
  /// Requests the message's pieces and reads those that are there. `read`: bytes of it so far. Returns whether the
  /// sender has to be notified. One message at a time is read so; others wait.
  bool read_pieces(const Message& message, std::byte* to, std::uint64_t& read) noexcept;

 private:
  Pair pair_;
  std::uint32_t next_slot_ = 0;  ///< of the next message, unless the sender started the ring anew
  std::uint64_t accepted_ = 0;
  std::uint64_t released_ = 0;
  std::uint64_t pieces_ = 0;
  std::uint64_t in_pieces_ = 0;                ///< number of the message being read in pieces, or 0
  std::vector<Message> unmatched_;             ///< accepted messages
  std::vector<std::vector<std::byte>> spare_;  ///< allocations for Message::saved
};

}  // namespace shardrun::shm_transport
