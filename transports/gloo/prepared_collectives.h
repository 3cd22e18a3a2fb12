#pragma once

#include <shardrun/sdk/transport/op.hpp>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "transports/gloo/full_mesh.h"
#include "transports/gloo/messages.h"

namespace shardrun::gloo_transport {

class PreparedCollective;

/// The collectives that a group has prepared, numbered in the order of their agreements. The numbers are the same on
/// all members. So members that start collectives in different orders never mix up their bytes.
class PreparedCollectives {
 public:
  /// Call it right after the members agreed on `op`. This outlives the result.
  [[nodiscard]] std::unique_ptr<PreparedCollective> add(const sdk::OpSpec& op);

 private:
  friend class PreparedCollective;

  [[nodiscard]] std::string name_of(std::uint64_t serial);

  std::mutex mutex_;                            ///< guards `names_`: one thread runs ops while another prepares them
  std::map<std::uint64_t, std::string> names_;  ///< by serial, of those that exist
  std::uint64_t added_ = 0;
};

/// One prepared collective. Leaves the list when destroyed.
class PreparedCollective {
 public:
  PreparedCollective(PreparedCollectives& calls, std::uint64_t serial) : prepared_(calls), serial_(serial) {}
  ~PreparedCollective();
  PreparedCollective(const PreparedCollective&) = delete;
  PreparedCollective& operator=(const PreparedCollective&) = delete;

  [[nodiscard]] std::uint64_t serial() const noexcept { return serial_; }
  /// Throws TransportError{SR_INVALID} where the message from `peer` does not belong to this collective or has other
  /// than `bytes` bytes.
  void require(const FullMesh& mesh, std::uint32_t peer, const EagerHeader& header, std::uint64_t bytes) const;

 private:
  PreparedCollectives& prepared_;
  std::uint64_t serial_;
};

}  // namespace shardrun::gloo_transport
