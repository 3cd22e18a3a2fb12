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

}  // namespace shardrun::shm_transport
