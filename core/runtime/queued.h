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
  DeviceQueue staged;         ///< the second queue: it starts transfers over staging memory, and waits for them
  DeviceQueue direct;         ///< the second queue: it starts transfers of the device's memory
  DeviceQueue kernels;        ///< the queue of kernels, which waits for the direct transfers
  std::vector<Call*> joined;  ///< in order: the waits for whose end the host has not asked yet
};

}  // namespace shardrun::runtime
