#include "transports/gloo/prepared_collectives.h"

namespace shardrun::gloo_transport {

std::unique_ptr<PreparedCollective> PreparedCollectives::add(const sdk::OpSpec& op) {
  auto prepared = std::make_unique<PreparedCollective>(*this, added_++);
  const std::lock_guard lock(mutex_);
  names_[prepared->serial()] = describe(op) + " (id " + std::to_string(op.id) + ")";
  return prepared;
}

std::string PreparedCollectives::name_of(std::uint64_t serial) {
  const std::lock_guard lock(mutex_);
  const auto name = names_.find(serial);
  return name != names_.end() ? name->second
                              : "a collective that is not prepared here (number " + std::to_string(serial) + ")";
}

PreparedCollective::~PreparedCollective() {
  const std::lock_guard lock(prepared_.mutex_);
  prepared_.names_.erase(serial_);
}

void PreparedCollective::require(const FullMesh& mesh, std::uint32_t peer, const EagerHeader& header,
                                 std::uint64_t bytes) const {
  if (header.id == serial_ && header.bytes == bytes) {
    return;
  }
  throw sdk::TransportError(
      SR_INVALID, "expected " + std::to_string(bytes) + " bytes of " + prepared_.name_of(serial_) + " from " +
                      mesh.name_of(peer) + ", which sent " + std::to_string(header.bytes) + " of " +
                      prepared_.name_of(header.id) + ": members start the collectives of a group in one order");
}

}  // namespace shardrun::gloo_transport
