#pragma once

#include <shardrun/sdk/transport.hpp>

#include <cstdint>
#include <span>
#include <string>

#include "transports/nccl/device.h"
#include "transports/nccl/steps.h"

namespace shardrun::nccl {

/// What all groups of a rank share.
struct Shared {
  Libraries libraries;
  sdk::Config config;
  sdk::Host log;
};

/// A communicator of NCCL that does not block: what a call begins may go on behind it. Used by one thread at a time,
/// with the device in use.
class Communicator {
 public:
  /// Meets the other members through the store, under `key`. Throws TransportError.
  Communicator(const Shared& shared, const sdk::GroupSpec& spec, const std::string& key);
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  /// Lets members that are still at work end theirs, for half a second at most.
  ~Communicator();

  /// Issues all of them as one; none is nothing. What ncclSuccess says has been handed to the stream; ncclInProgress
  /// will be, and `state` says when. REQUIRES: nothing is in progress, and it was not aborted.
  [[nodiscard]] ncclResult_t launch(std::span<const Step> steps, CUstream stream);
  [[nodiscard]] ncclResult_t state();
  /// Ends what it does on the device, too.
  void abort() noexcept;
  [[nodiscard]] bool is_aborted() const noexcept { return handle_ == nullptr; }
  /// "remote process exited …: its last error"
  [[nodiscard]] std::string text_of(ncclResult_t result) const;

 private:
  void connect(const sdk::GroupSpec& spec, const ncclUniqueId& id);
  [[nodiscard]] ncclResult_t issue(const Step& step, CUstream stream);
  [[nodiscard]] ncclUniqueId meet(const sdk::GroupSpec& spec, const std::string& key) const;

  const Shared& shared_;
  const Nccl& nccl_;
  ncclComm_t handle_ = nullptr;
};

/// Waits a little; longer, the longer it has been waited for.
void pause_polling(std::uint32_t round) noexcept;

}  // namespace shardrun::nccl
