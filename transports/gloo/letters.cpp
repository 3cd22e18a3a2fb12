#include "transports/gloo/letters.h"

#include <string>

#include "transports/gloo/signals.h"

namespace shardrun::gloo_transport {

using sdk::TransportError;

Inbox::Inbox(Mesh& mesh, std::uint32_t peer, Stream stream, std::size_t depth)
    : mesh_(mesh), peer_(peer), stream_(stream), slots_(depth) {
  const NoSigpipe no_sigpipe;  // all else is done by a lane, which sees to that
  for (Slot& slot : slots_) {
    slot.letter = std::make_unique<Letter>();
    slot.buffer = mesh.buffer(slot.letter.get(), sizeof(Letter));
    post(slot);
  }
}

void Inbox::post(Slot& slot) { mesh_.receive(*slot.buffer, peer_, slot_of(stream_), sizeof(Letter)); }

const Letter& Inbox::next() {
  Slot& slot = slots_[read_ % slots_.size()];
  mesh_.wait_received(*slot.buffer, peer_);
  ++read_;
  return *slot.letter;
}

void Inbox::recycle() {
  while (recycled_ != read_) {
    try {
      post(slots_[recycled_ % slots_.size()]);
    } catch (const TransportError&) {
      // The peer may have left after the last op: that is nobody's failure yet.
    }
    ++recycled_;
  }
}

Outgoing::Outgoing(Mesh& mesh, std::uint32_t peer, Stream stream)
    : mesh_(mesh),
      peer_(peer),
      stream_(stream),
      letter_(std::make_unique<Letter>()),
      buffer_(mesh.buffer(letter_.get(), sizeof(Letter))) {}

Letter& Outgoing::compose() {
  wait();
  return *letter_;
}

void Outgoing::send() {
  const std::uint64_t bytes = letter_->head.bytes <= letter_bytes ? letter_->head.bytes : 0;
  mesh_.send(*buffer_, peer_, slot_of(stream_), sizeof(LetterHead) + bytes);
  is_under_way_ = true;
}

void Outgoing::wait() {
  if (is_under_way_) {
    mesh_.wait_sent(*buffer_, peer_);
    is_under_way_ = false;
  }
}

void require_letter(const Mesh& mesh, std::uint32_t peer, const LetterHead& head, std::uint64_t id,
                    std::uint64_t bytes) {
  if (head.id == id && head.bytes == bytes) {
    return;
  }
  throw TransportError(SR_INVALID, "expected " + std::to_string(bytes) + " bytes of op " + std::to_string(id) +
                                       " from " + mesh.name_of(peer) + ", which sent " + std::to_string(head.bytes) +
                                       " of op " + std::to_string(head.id) + ": the two members do not do the same");
}

}  // namespace shardrun::gloo_transport
