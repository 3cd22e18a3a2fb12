#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "core/device/memory.h"
#include "core/partition/program.h"

namespace shardrun::plugins {
class TransportQueue;
}  // namespace shardrun::plugins

namespace shardrun::runtime {

class QueuedTransfers;

/// The memory that a rank's transfers use.
struct TransportMemory {
  std::shared_ptr<const device::Memory> host;       ///< the arena, or staging memory if the host cannot address that
  std::shared_ptr<const device::Memory> of_device;  ///< the arena, if the host cannot address it; else null
};

/// Runs the transfers of one rank's programs. Used by the thread that runs the programs.
class Communicator {
 public:
  using Handle = std::size_t;

  Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  virtual ~Communicator() = default;

  /// Where a transfer's data is. The memory stays in place.
  struct TransferBuffers {
    void* send = nullptr;
    std::uint64_t send_bytes = 0;
    void* recv = nullptr;
    std::uint64_t recv_bytes = 0;
    void* scratch = nullptr;
    std::uint64_t scratch_bytes = 0;
  };

  /// Called once for each transfer of each program before anything is started, in the same order on all ranks.
  /// `waited_at_once`: nothing is computed between its start and its wait.
  [[nodiscard]] virtual Handle prepare(const partition::Transfer& transfer, const TransferBuffers& buffers,
                                       bool waited_at_once) = 0;
  virtual void start(Handle transfer) = 0;
  /// Whether it is complete.
  [[nodiscard]] virtual bool test(Handle transfer) = 0;
  virtual void wait(Handle transfer) = 0;
  /// When a transfer's latest run was under way. Nothing before its wait, or if the transport does not say.
  struct Times {
    std::int64_t begun = 0;  ///< nanoseconds of the monotonic clock
    std::int64_t ended = 0;
  };
  [[nodiscard]] virtual std::optional<Times> times(Handle /*transfer*/) const { return std::nullopt; }
  /// The same transfers in the order of a device's queue; null: only the host starts them and waits for them.
  [[nodiscard]] virtual QueuedTransfers* queued() noexcept { return nullptr; }
  /// Seconds that this rank spent so far only on starting transfers and waiting for them.
  [[nodiscard]] virtual double exposed_seconds() const noexcept { return 0; }
  /// Seconds that transfers were under way while this rank neither started transfers nor waited for them; a lower
  /// bound. Concurrent transfers are counted each. 0 for transports that do not say when.
  [[nodiscard]] virtual double hidden_seconds() const noexcept { return 0; }
};

/// Starts transfers when a device's queue comes to them and lets queues wait for them, while the host goes on. Used by
/// the thread that runs the programs.
class QueuedTransfers {
 public:
  QueuedTransfers() = default;
  QueuedTransfers(const QueuedTransfers&) = delete;
  QueuedTransfers& operator=(const QueuedTransfers&) = delete;
  virtual ~QueuedTransfers() = default;

  virtual void start(Communicator::Handle transfer, const plugins::TransportQueue& queue) = 0;
  /// Work that the queue is given later waits for the transfer. A transfer that fails does not hold it.
  virtual void join(Communicator::Handle transfer, const plugins::TransportQueue& queue) = 0;
  /// Throws the transfer's error. Call it before the transfer is started again. REQUIRES: the queue has gone on from
  /// its join. `waited`: when it, or a queue that waits for it, stood still for the transfer.
  virtual void finish(Communicator::Handle transfer, const Communicator::Times& waited) = 0;
  /// Fails all transfers, those under way and later ones. Does not wait.
  virtual void abort(const std::string& reason) noexcept = 0;
  /// Ends and frees all transfers, those that are under way with an error. Call it before the queues are gone.
  virtual void free_all() noexcept = 0;
};

}  // namespace shardrun::runtime
