#pragma once

#include <cstddef>
#include <vector>

#include "core/runtime/device_queue.h"
#include "core/runtime/executor.h"

namespace shardrun::runtime {

/// Transfers in the order of the device's queues.
struct Executor::Queued {
  /// `kernels_in` and `second`: the executor's queues, of `device`. `waits`: the calls that wait for transfers.
  Queued(QueuedTransfers& of, const device::DeviceApart& device, device::Queue& kernels_in, device::Queue& second,
         std::size_t waits);

  QueuedTransfers& transfers;
  DeviceQueue staged;   ///< the second queue, for transfers over staging memory: they start in it, and it waits for
                        ///< them
  DeviceQueue direct;   ///< the second queue, for transfers of the device's memory, which start in it
  DeviceQueue kernels;  ///< the queue of kernels, which waits for the direct transfers
  std::vector<Call*> joined;  ///< waits in order, for whose end the host has not asked yet
};

}  // namespace shardrun::runtime
