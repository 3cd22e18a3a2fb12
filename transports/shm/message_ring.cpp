#include "transports/shm/group.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace shardrun::shm_transport {
namespace {

void copy_bytes(std::byte* to, const std::byte* from, std::uint64_t bytes) noexcept {
  if (bytes > 0) {
    std::memcpy(to, from, bytes);
  }
}

}  // namespace

/// Reads what the receiver released only if room is short and once for each page of slots, because each read takes the
/// cache line from the receiver.
bool SendRing::has_room(std::uint32_t messages) noexcept {
  constexpr std::uint32_t slots_per_page = 4096 / sizeof(MessageSlot);
  const std::uint32_t slots = used_slots_ + messages;
  const bool looks = slots > slots_per_pair || used_buffers_ + messages > eager_buffers_per_pair ||
                     slots / slots_per_page != used_slots_ / slots_per_page;
  if (looks && pair_.receiver->released.load() == posted_) {
    used_slots_ = 0;
    used_buffers_ = 0;
  }
  return used_slots_ + messages <= slots_per_pair;
}

Message SendRing::post(std::uint64_t id, const std::byte* data, std::uint64_t bytes,
                       const std::optional<MemoryRef>& memory) {
  MessageSlot& slot = pair_.slots[used_slots_++];
  Message message{.slot = &slot, .number = ++posted_, .id = id, .bytes = bytes};
  slot.id = id;
  slot.bytes = bytes;
  if (bytes <= sizeof(slot.data)) {
    message.protocol = Protocol::eager;
    slot.eager_buffer = no_eager_buffer;
    copy_bytes(slot.data, data, bytes);
  } else if (bytes <= eager_bytes && used_buffers_ < eager_buffers_per_pair) {
    message.protocol = Protocol::eager;
    slot.eager_buffer = used_buffers_++;
    copy_bytes(pair_.eager_buffers + slot.eager_buffer * eager_bytes, data, bytes);
  } else if (memory) {
    message.protocol = Protocol::mapped;
    std::memcpy(slot.data, &*memory, sizeof(slot.data));
  } else {
    message.protocol = Protocol::in_pieces;
  }
  slot.protocol = message.protocol;
  slot.number.store(message.number);
  return message;
}

bool SendRing::write_pieces(const Message& message, const std::byte* data, std::uint64_t& written) noexcept {
  if (written == message.bytes || pair_.receiver->requested.load() != message.number) {
    return false;
  }
  const std::uint64_t before = written;
  while (written < message.bytes && pieces_ - pair_.receiver->pieces_read.load() < pieces_per_pair) {
    const std::uint64_t bytes = std::min(piece_bytes, message.bytes - written);
    copy_bytes(pair_.pieces + pieces_ % pieces_per_pair * piece_bytes, data + written, bytes);
    written += bytes;
    pair_.sender->pieces_written.store(++pieces_);
  }
  return written != before;
}

ReceiveRing::ReceiveRing(const Pair& pair) : pair_(pair) {
  // More messages than these cause an allocation when they first arrive.
  constexpr std::size_t usual_messages = 64;
  unmatched_.reserve(usual_messages);
  spare_.reserve(usual_messages);
}

void ReceiveRing::poll() {
  const auto has_arrived = [&](std::uint32_t at) {
    return at < slots_per_pair && pair_.slots[at].number.load() == accepted_ + 1;
  };
  for (;;) {
    if (!has_arrived(next_slot_)) {
      if (!has_arrived(0)) {
        return;
      }
      next_slot_ = 0;
    }
    MessageSlot& slot = pair_.slots[next_slot_++];
    Message& message = unmatched_.emplace_back();
    message.slot = &slot;
    message.number = ++accepted_;
    message.id = slot.id;
    message.bytes = slot.bytes;
    message.protocol = slot.protocol;
    if (message.protocol == Protocol::mapped) {
      std::memcpy(static_cast<void*>(&message.memory), slot.data, sizeof(slot.data));
      message.memory.bytes = message.bytes;
    } else if (message.protocol == Protocol::eager) {
      message.data =
          slot.eager_buffer == no_eager_buffer ? slot.data : pair_.eager_buffers + slot.eager_buffer * eager_bytes;
    }
  }
}

std::optional<Message> ReceiveRing::match(std::uint64_t id) {
  const auto found =
      std::find_if(unmatched_.begin(), unmatched_.end(), [&](const Message& message) { return message.id == id; });
  if (found == unmatched_.end()) {
    return std::nullopt;
  }
  std::optional<Message> message = std::move(*found);
  unmatched_.erase(found);
  return message;
}

void ReceiveRing::recycle(Message& message) noexcept {
  if (message.saved.capacity() > 0 && spare_.size() < spare_.capacity()) {
    message.saved.clear();
    spare_.push_back(std::move(message.saved));
  }
}

bool ReceiveRing::release() {
  if (released_ == accepted_) {
    return false;
  }
  for (Message& message : unmatched_) {
    if (message.protocol == Protocol::eager && message.saved.empty() && message.bytes > 0) {
      if (!spare_.empty()) {
        message.saved = std::move(spare_.back());
        spare_.pop_back();
      }
      message.saved.reserve(eager_bytes);
      message.saved.assign(message.data, message.data + message.bytes);
      message.data = message.saved.data();
    }
  }
  released_ = accepted_;
  pair_.receiver->released.store(accepted_);
  return true;
}

bool ReceiveRing::read_pieces(const Message& message, std::byte* to, std::uint64_t& read) noexcept {
  if (in_pieces_ != 0 && in_pieces_ != message.number) {
    return false;
  }
  in_pieces_ = message.number;
  const std::uint64_t before = read;
  bool has_requested = false;
  if (pair_.receiver->requested.load() != message.number) {
    pair_.receiver->requested.store(message.number);
    has_requested = true;
  }
  while (read < message.bytes && pair_.sender->pieces_written.load() > pieces_) {
    const std::uint64_t bytes = std::min(piece_bytes, message.bytes - read);
    copy_bytes(to + read, pair_.pieces + pieces_ % pieces_per_pair * piece_bytes, bytes);
    read += bytes;
    pair_.receiver->pieces_read.store(++pieces_);
  }
  if (read == message.bytes) {
    in_pieces_ = 0;
  }
  return has_requested || read != before;
}

}  // namespace shardrun::shm_transport
