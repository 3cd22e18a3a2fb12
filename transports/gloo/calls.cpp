#include "transports/gloo/calls.h"

namespace shardrun::gloo_transport {

using sdk::TransportError;

std::unique_ptr<Call> Calls::enter(const sdk::OpSpec& op) {
  auto call = std::make_unique<Call>(*this, entered_++);
  const std::lock_guard lock(mutex_);
  names_[call->serial()] = describe(op) + " (id " + std::to_string(op.id) + ")";
  return call;
}

std::string Calls::name_of(std::uint64_t serial) {
  const std::lock_guard lock(mutex_);
  const auto name = names_.find(serial);
  return name != names_.end() ? name->second
                              : "a collective that is not prepared here (number " + std::to_string(serial) + ")";
}

Call::~Call() {
  const std::lock_guard lock(calls_.mutex_);
  calls_.names_.erase(serial_);
}

void Call::require(const Mesh& mesh, std::uint32_t peer, const LetterHead& head, std::uint64_t bytes) const {
  if (head.id == serial_ && head.bytes == bytes) {
    return;
  }
  throw TransportError(SR_INVALID, "expected " + std::to_string(bytes) + " bytes of " + calls_.name_of(serial_) +
                                       " from " + mesh.name_of(peer) + ", which sent " + std::to_string(head.bytes) +
                                       " of " + calls_.name_of(head.id) +
                                       ": members start the collectives of a group in one order");
}

}  // namespace shardrun::gloo_transport
