#pragma once

#include <cstddef>
#include <vector>

#include "core/runtime/device_queue.h"
#include "core/runtime/executor.h"

namespace shardrun::runtime {

/// Transfers that wait for the queue of copies and that it waits for, instead of the host.
struct Executor::Queued {
  /// `waits`: calls that wait for transfers.
  Queued(QueuedTransfers& of, device::Queue& in, std::size_t waits);

  QueuedTransfers& transfers;
  DeviceQueue queue;
  std::vector<Call*> joined;  ///< calls whose transfers' ends are not known yet, in their order
};

}  // namespace shardrun::runtime
