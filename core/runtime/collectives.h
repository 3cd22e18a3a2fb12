#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "core/device/memory.h"
#include "core/partition/partition.h"
#include "core/runtime/communicator.h"
#include "core/runtime/flight_recorder.h"
#include "plugins/loader/transport.h"

#include <shardrun/sdk/transport/core_wait.hpp>

namespace shardrun::runtime {

/// The SR_DTYPE_... of an element type.
[[nodiscard]] std::uint32_t transport_type(graph::DType dtype) noexcept;

/// The transports of a job, and which of them serves each mesh axis.
struct TransportSet {
  std::vector<plugins::Transport> transports;
  IdVector<mesh::AxisId, std::size_t> of_axis;
  bool in_order = false;  ///< sums are added in the order of the ranks: SR_OP_FLAG_IN_ORDER
  bool checked = false;   ///< see plugins::TransportSetup
  /// Per axis: its transport can move memory of the job's device that the host cannot address. Empty: none can.
  IdVector<mesh::AxisId, bool> moves_device_memory = {};
  std::uint32_t device_memory = 0;  ///< SR_MEMORY_... of that memory
};

/// Whether a transport moves the memory of a device that the host cannot address, in the order of the device's queues.
[[nodiscard]] bool moves_memory_of(const device::Device& device, const sdk::Props& props);

/// Returns a function that asks a transport how much scratch a transfer needs. `set` outlives it. It throws
/// Error{transport} for an operation on the device's memory that the transport lacks: only the host's can be composed.
[[nodiscard]] partition::TransferScratch scratch_of(const TransportSet& set);

/// The bytes of the hashes of checked transfers. `set` outlives the result.
[[nodiscard]] partition::TransferChecks checks_of(const TransportSet& set);

/// The latest times in which a queue waited for transfers, in their order.
class Waits {
 public:
  /// REQUIRES: `wait` begins at or after the end of the one before.
  void add(const Communicator::Times& wait) noexcept {
    latest_[count_ % latest_.size()] = wait;
    ++count_;
  }

  /// Nanoseconds of `span` in which the queue did not wait. It is a lower bound: only the latest 64 waits are
  /// kept, and time before them is left out.
  [[nodiscard]] std::int64_t outside(const Communicator::Times& span) const noexcept {
    const std::size_t known = std::min(count_, latest_.size());
    std::int64_t begun = span.begun;
    std::int64_t waited = 0;
    for (std::size_t back = 1; back <= known; ++back) {
      const Communicator::Times& wait = latest_[(count_ - back) % latest_.size()];
      waited += std::max<std::int64_t>(0, std::min(wait.ended, span.ended) - std::max(wait.begun, span.begun));
      if (back == latest_.size() && count_ > known) {
        begun = std::max(begun, wait.begun);
      }
    }
    return std::max<std::int64_t>(0, span.ended - begun - waited);
  }

 private:
  std::array<Communicator::Times, 64> latest_{};
  std::size_t count_ = 0;
};

/// Runs a rank's transfers over open transports. There is one group along each mesh axis, and one for each link to or
/// from another stage.
class Collectives final : public Communicator, private QueuedTransfers {
 public:
  /// Registers the memory that transfers use, and connects the groups, which waits for the other ranks. `device`: that
  /// of the memory. `timeout_s`: seconds for connecting, for preparing and for each transfer. Started operations are
  /// recorded in `record`. REQUIRES: `set` and `record` outlive this object, and `memory` outlives the transports in
  /// `set`. Throws Error.
  Collectives(TransportSet& set, const partition::Partition& partition, std::int64_t rank, const device::Device& device,
              const TransportMemory& memory, double timeout_s, FlightRecorder& record);

  [[nodiscard]] Handle prepare(const partition::Transfer& transfer, const TransferBuffers& buffers,
                               bool waited_at_once) override;
  void start(Handle transfer) override;
  [[nodiscard]] bool test(Handle transfer) override;
  void wait(Handle transfer) override;
  [[nodiscard]] std::optional<Times> times(Handle transfer) const override { return ops_[transfer].times; }
  [[nodiscard]] QueuedTransfers* queued() noexcept override { return this; }
  [[nodiscard]] double exposed_seconds() const noexcept override { return static_cast<double>(exposed_ns_) * 1e-9; }
  [[nodiscard]] double hidden_seconds() const noexcept override { return static_cast<double>(hidden_ns_) * 1e-9; }
  [[nodiscard]] double late_seconds() const noexcept override { return static_cast<double>(late_ns_) * 1e-9; }
  [[nodiscard]] Starved starved() noexcept override;

  // Operations that no program has planned, on memory that is not registered.

  /// The number of the group along a mesh axis. REQUIRES: the axis has several ranks.
  [[nodiscard]] std::size_t group_along(mesh::AxisId axis) const;
  /// Connects another group, over the transport of the first axis, and returns its number. `id`: from 1, the same on
  /// all members and different for each group. All ranks call it in the same order. Throws Error.
  [[nodiscard]] std::size_t connect(const std::string& name, std::uint64_t id, const std::vector<std::int64_t>& members,
                                    std::int64_t rank);
  /// Prepares and starts an operation, which finish_once() must end. Members start the operations of a group in the
  /// same order. The group gives `op` its number. Throws Error.
  [[nodiscard]] Handle start_once(std::size_t group, sdk::OpSpec op);
  [[nodiscard]] bool test_once(Handle op) { return once_.at(op).op.test(); }
  /// Waits for an operation and frees it. Returns its times, if the transport reports them. Throws its error.
  std::optional<Times> finish_once(Handle op);
  /// Whether an operation of start_once() still has to be ended by finish_once().
  [[nodiscard]] bool has_once() const noexcept { return !once_.empty(); }
  /// Frees the operations of start_once() that finish_once() has not ended. REQUIRES: abort() was called.
  void drop_once() noexcept { once_.clear(); }

  /// Fails all present and later operations. Any thread may call it.
  void abort(const std::string& reason) noexcept override;

 private:
  struct Group {
    mesh::AxisId axis;
    partition::Link link;  ///< nothing: a group along the axis
    plugins::TransportGroup group;
    std::uint32_t recorded = 0;  ///< number in the flight record
    std::uint64_t ops = 0;       ///< number of ops prepared so far; all members prepare them in the same order
    std::int64_t ended = 0;      ///< the time at which the last of its operations was complete
  };

  /// A prepared operation, with its number in the flight record.
  struct Op {
    plugins::TransportOp op;
    std::size_t group = 0;
    std::uint32_t recorded = 0;
    std::int64_t started = 0;                     ///< when the host started it
    std::int64_t exposed_before = 0;              ///< `exposed_ns_` when it was started
    std::optional<Times> times = std::nullopt;    ///< of its latest run, after the wait
    std::int64_t starved = 0;                     ///< of its latest run: see sdk::OpTimes
    std::vector<std::uint32_t>* reuse = nullptr;  ///< for an unplanned operation: the list to which its number returns
  };

  void add_group(mesh::AxisId axis, const partition::Link& link, std::uint64_t number,
                 const std::vector<std::int64_t>& members, std::int64_t rank, const std::string& name);
  [[nodiscard]] Group& group_of(const partition::Transfer& transfer);
  [[nodiscard]] std::int64_t deadline() const noexcept;
  void start(Handle transfer, const plugins::TransportQueue& queue) override;
  void join(Handle transfer, const plugins::TransportQueue& queue) override;
  void finish(Handle transfer, const Times& waited) override;
  void free_all() noexcept override {
    ops_.clear();
    once_.clear();
  }

  /// Starts an op. `act` does the actual start.
  template <typename Act>
  void start_by(Op& op, const Act& act);
  void finish(Op& op);
  void start(Op& op);
  void wait(Op& op);
  /// Counts how long this thread had no core since the last call. `waited`: whether it spent that time in a wait.
  void count_starved(std::int64_t now, bool waited) noexcept;
  /// Counts by how much an operation began late, if that is more than a transport's thread needs to wake up. It was not
  /// late while its thread had no core.
  void count_late(const Op& op);

  TransportSet& set_;
  const mesh::Mesh mesh_;
  std::int64_t timeout_ns_;
  std::uint32_t unit_;                        ///< the unit of the device (the GPU) that has the memory
  std::vector<std::uint64_t> registrations_;  ///< per transport, its registration of the memory
  std::mutex mutex_;                          ///< guards `groups_` while a group is added
  std::vector<Group> groups_;
  std::vector<Op> ops_;
  std::map<Handle, Op> once_;
  Handle next_once_ = 0;
  /// Unused numbers in the flight record for unplanned operations, by group, bytes and label.
  std::map<std::tuple<std::uint32_t, std::uint64_t, std::string>, std::vector<std::uint32_t>> recorded_once_;
  FlightRecorder& record_;
  std::int64_t exposed_ns_ = 0;
  std::int64_t hidden_ns_ = 0;
  std::int64_t late_ns_ = 0;
  std::int64_t yielded_ns_ = 0;
  sdk::CoreWait core_wait_;
  /// The value of core_wait_ when the transport first told times of an op. A transport that tells none may wait by
  /// yielding, which looks like a lack of a core. Then nothing is counted.
  std::optional<std::int64_t> starved_before_;
  struct {
    std::int64_t looked = 0;        ///< when `own` was counted
    std::int64_t own = 0;           ///< nanoseconds of this thread
    std::int64_t own_in_waits = 0;  ///< the part of `own` in wait()
    std::int64_t transports = 0;    ///< of transports' threads, while this one waited for them
  } starved_;
  Waits waits_;  ///< times at which queues waited
};

}  // namespace shardrun::runtime
