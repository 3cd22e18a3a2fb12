#pragma once

#include <shardrun/transport.h>

#include <cstdint>

#include "core/device/queue.h"
#include "plugins/loader/transport_queue.h"

namespace shardrun::runtime {

/// A device's queue as transports see it.
class DeviceQueue final : public plugins::TransportQueue {
 public:
  /// `queue` outlives this.
  explicit DeviceQueue(device::Queue& queue) : TransportQueue(SR_QUEUE_HOST), queue_(queue) {}

  void call(void (*run)(void* argument), void* argument) override { queue_.call(run, argument); }
  [[nodiscard]] std::uint64_t add_gate() override { return queue_.add_gate(); }
  void open_gate(std::uint64_t gate) noexcept override { queue_.open_gate(gate); }

 private:
  device::Queue& queue_;
};

}  // namespace shardrun::runtime
