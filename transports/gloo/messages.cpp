#include "transports/gloo/messages.h"

#include <string>

#include "transports/gloo/signals.h"

namespace shardrun::gloo_transport {

using sdk::TransportError;

EagerReceiver::EagerReceiver(FullMesh& mesh, std::uint32_t peer, Channel channel, std::size_t depth)
    : mesh_(mesh), peer_(peer), channel_(channel), slots_(depth) {
  const NoSigpipe no_sigpipe;  // other calls are made by a queue, which blocks SIGPIPE
  for (Slot& slot : slots_) {
    slot.message = std::make_unique<EagerMessage>();
    slot.buffer = mesh.buffer(slot.message.get(), sizeof(EagerMessage));
    post(slot);
  }
}

void EagerReceiver::post(Slot& slot) { mesh_.receive(*slot.buffer, peer_, slot_of(channel_), sizeof(EagerMessage)); }

const EagerMessage& EagerReceiver::next() {
  Slot& slot = slots_[read_ % slots_.size()];
  mesh_.wait_received(*slot.buffer, peer_);
  ++read_;
  return *slot.message;
}

void EagerReceiver::recycle() {
  while (recycled_ != read_) {
    try {
      post(slots_[recycled_ % slots_.size()]);
    } catch (const TransportError&) {
      // The peer may have left after the last op, which is no failure yet.
    }
    ++recycled_;
  }
}

EagerSender::EagerSender(FullMesh& mesh, std::uint32_t peer, Channel channel)
    : mesh_(mesh),
      peer_(peer),
      channel_(channel),
      message_(std::make_unique<EagerMessage>()),
      buffer_(mesh.buffer(message_.get(), sizeof(EagerMessage))) {}

EagerMessage& EagerSender::compose() {
  wait();
  return *message_;
}

void EagerSender::send() {
  const std::uint64_t bytes = message_->header.bytes <= eager_bytes ? message_->header.bytes : 0;
  mesh_.send(*buffer_, peer_, slot_of(channel_), sizeof(EagerHeader) + bytes);
  is_under_way_ = true;
}

void EagerSender::wait() {
  if (is_under_way_) {
    mesh_.wait_sent(*buffer_, peer_);
    is_under_way_ = false;
  }
}

void require_message(const FullMesh& mesh, std::uint32_t peer, const EagerHeader& header, std::uint64_t id,
                     std::uint64_t bytes) {
  if (header.id == id && header.bytes == bytes) {
    return;
  }
  throw TransportError(SR_INVALID, "expected " + std::to_string(bytes) + " bytes of op " + std::to_string(id) +
                                       " from " + mesh.name_of(peer) + ", which sent " + std::to_string(header.bytes) +
                                       " of op " + std::to_string(header.id) + ": the two members do not do the same");
}

}  // namespace shardrun::gloo_transport
