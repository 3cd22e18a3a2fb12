#pragma once

#include <cstddef>
#include <vector>

#include "core/runtime/device_queue.h"
#include "core/runtime/executor.h"

namespace shardrun::runtime {

/// Transfers in the order of the device's queues.
struct Executor::Queued {
  /// `kernels_in` and `second`: the executor's queues, of `device`. `waits`: calls that wait for transfers.
  Queued(QueuedTransfers& of, const device::DeviceApart& device, device::Queue& kernels_in, device::Queue& second,
         std::size_t waits);

  QueuedTransfers& transfers;
  DeviceQueue staged;   ///< the second queue, in which transfers over staging memory start, and which waits for them
  DeviceQueue direct;   ///< the second queue, in which transfers of the device's memory start
  DeviceQueue kernels;  ///< waits for those
  std::vector<Call*> joined;  ///< waits in order; the host has not asked for their ends yet
};

}  // namespace shardrun::runtime
