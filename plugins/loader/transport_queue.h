#pragma once

#include <shardrun/transport.h>

#include <cstdint>

namespace shardrun::plugins {

/// A device's queue, as transports see it. sr_queue in shardrun/transport.h states what each function does. It outlives
/// the ops that are enqueued in it or joined into it.
class TransportQueue {
 public:
  /// `kind`: SR_QUEUE_...
  explicit TransportQueue(std::uint32_t kind, void* native = nullptr, std::uint32_t device = 0) noexcept;
  TransportQueue(const TransportQueue&) = delete;
  TransportQueue& operator=(const TransportQueue&) = delete;
  virtual ~TransportQueue() = default;

  virtual void call(void (*run)(void* argument), void* argument) = 0;
  [[nodiscard]] virtual std::uint64_t add_gate() = 0;
  /// Any thread may call it.
  virtual void open_gate(std::uint64_t gate) noexcept = 0;

  [[nodiscard]] const sr_queue& raw() const noexcept { return raw_; }

 private:
  sr_queue raw_;
};

}  // namespace shardrun::plugins
