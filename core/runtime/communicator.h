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
  std::shared_ptr<const device::Memory> host;       ///< the arena; if the host cannot address it, staging memory
  std::shared_ptr<const device::Memory> of_device;  ///< the arena, if the host cannot address it; else null
};

/// Seconds since a rank's start in which it lacked a core: its thread could run and had none, or waited for a transfer
/// that the transport's thread could work on and had none. Times in which the rank gave its core to others because it
/// waited for other ranks do not count. 0 if the system or the transport does not report them.
struct Starved {
  double all = 0;
  double waiting = 0;  ///< the part of `all` in waits for transfers
};

/// Runs the transfers of one rank's programs. Used only by the thread that runs the programs.
class Communicator {
 public:
  using Handle = std::size_t;

  Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;
  virtual ~Communicator() = default;

  /// The memory of a transfer's data. It must not move.
  struct TransferBuffers {
    void* send = nullptr;
    std::uint64_t send_bytes = 0;
    void* recv = nullptr;
    std::uint64_t recv_bytes = 0;
    void* scratch = nullptr;
    std::uint64_t scratch_bytes = 0;
  };

  /// Called once for each transfer of each program before anything is started, in the same order on all ranks.
  /// `waited_at_once`: nothing is computed between the transfer's start and its wait.
  [[nodiscard]] virtual Handle prepare(const partition::Transfer& transfer, const TransferBuffers& buffers,
                                       bool waited_at_once) = 0;
  virtual void start(Handle transfer) = 0;
  /// Whether the transfer is complete.
  [[nodiscard]] virtual bool test(Handle transfer) = 0;
  virtual void wait(Handle transfer) = 0;
  /// When a transfer's latest run was in progress. Nothing before its wait, or if the transport does not report it.
  struct Times {
    std::int64_t begun = 0;  ///< nanoseconds of the monotonic clock
    std::int64_t ended = 0;
  };
  [[nodiscard]] virtual std::optional<Times> times(Handle /*transfer*/) const { return std::nullopt; }
  /// The interface for starting the same transfers in the order of a device's queue; null: only the host can start them
  /// and wait for them.
  [[nodiscard]] virtual QueuedTransfers* queued() noexcept { return nullptr; }
  /// Seconds that this rank has spent so far on nothing but starting transfers and waiting for them.
  [[nodiscard]] virtual double exposed_seconds() const noexcept { return 0; }
  /// Seconds in which transfers were in progress while this rank neither started transfers nor waited for them; a lower
  /// bound. Each of several concurrent transfers counts. 0 if the transports do not report times.
  [[nodiscard]] virtual double hidden_seconds() const noexcept { return 0; }
  /// Seconds between the host's starts of transfers and the transport's beginning to work on them. Time in which the
  /// transport still worked on earlier transfers of the group does not count, nor do delays as short as a thread's
  /// wake-up. 0 if the transports do not report times, or if a queue starts them.
  [[nodiscard]] virtual double late_seconds() const noexcept { return 0; }
  [[nodiscard]] virtual Starved starved() noexcept { return {}; }
};

/// Starts transfers when a device's queue reaches them, and makes queues wait for them, while the host continues. Used
/// only by the thread that runs the programs.
class QueuedTransfers {
 public:
  QueuedTransfers() = default;
  QueuedTransfers(const QueuedTransfers&) = delete;
  QueuedTransfers& operator=(const QueuedTransfers&) = delete;
  virtual ~QueuedTransfers() = default;

  virtual void start(Communicator::Handle transfer, const plugins::TransportQueue& queue) = 0;
  /// Makes work that the queue gets later wait for the transfer. If the transfer fails, the queue continues.
  virtual void join(Communicator::Handle transfer, const plugins::TransportQueue& queue) = 0;
  /// Throws the transfer's error. Call it before the transfer is started again. `waited`: the time that the queue, or a
  /// queue that waits for it, spent waiting for the transfer. REQUIRES: the queue has passed the join.
  virtual void finish(Communicator::Handle transfer, const Communicator::Times& waited) = 0;
  /// Fails all transfers, present and later ones. Does not wait.
  virtual void abort(const std::string& reason) noexcept = 0;
  /// Ends and frees all transfers; those in progress end with an error. Call it before the queues are destroyed.
  virtual void free_all() noexcept = 0;
};

}  // namespace shardrun::runtime
