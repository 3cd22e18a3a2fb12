#pragma once

#include <shardrun/sdk/op.hpp>

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "transports/gloo/letters.h"
#include "transports/gloo/mesh.h"

namespace shardrun::gloo_transport {

class Call;

/// The collectives that a group has prepared, numbered in the order in which its members agreed on them: the same on
/// all. So members that start them in different orders never take the bytes of one for another's.
class Calls {
 public:
  /// Right after the members agreed on `op`. This outlives the call.
  [[nodiscard]] std::unique_ptr<Call> enter(const sdk::OpSpec& op);

 private:
  friend class Call;

  [[nodiscard]] std::string name_of(std::uint64_t serial);

  std::mutex mutex_;                            ///< of `names_`: a run looks for what another thread prepares
  std::map<std::uint64_t, std::string> names_;  ///< of those that are prepared
  std::uint64_t entered_ = 0;
};

/// One of them, for as long as it is prepared.
class Call {
 public:
  Call(Calls& calls, std::uint64_t serial) : calls_(calls), serial_(serial) {}
  ~Call();
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  [[nodiscard]] std::uint64_t serial() const noexcept { return serial_; }
  /// Throws TransportError{SR_INVALID} where the letter from `peer` is not one of this call, with `bytes`.
  void require(const Mesh& mesh, std::uint32_t peer, const LetterHead& head, std::uint64_t bytes) const;

 private:
  Calls& calls_;
  std::uint64_t serial_;
};

}  // namespace shardrun::gloo_transport
