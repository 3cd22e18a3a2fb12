#pragma once

#include <cstddef>
#include <vector>

#include "core/runtime/device_queue.h"
#include "core/runtime/executor.h"

namespace shardrun::runtime {

/// Transfers in the order of the queue of copies.
struct Executor::Queued {
  /// `waits`: calls that wait for transfers.
  Queued(QueuedTransfers& of, device::Queue& in, std::size_t waits);

  QueuedTransfers& transfers;
  DeviceQueue queue;
  std::vector<Call*> joined;  ///< waits in their order, whose ends the host has not asked for yet
};

}  // namespace shardrun::runtime
