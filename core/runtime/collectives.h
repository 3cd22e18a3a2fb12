#pragma once

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
#include "core/runtime/waits.h"
#include "plugins/loader/transport.h"

namespace shardrun::runtime {

/// SR_DTYPE_...
[[nodiscard]] std::uint32_t transport_type(graph::DType dtype) noexcept;

/// The transports of a job, and the one that serves each mesh axis.
struct TransportSet {
  std::vector<plugins::Transport> transports;
  IdVector<mesh::AxisId, std::size_t> of_axis;
  bool in_order = false;  ///< sums are added in the order of the ranks: SR_OP_FLAG_IN_ORDER
  bool checked = false;   ///< see plugins::TransportSetup
  /// Per axis, whether its transport moves memory of the job's device that the host cannot address. Empty: none does.
  IdVector<mesh::AxisId, bool> moves_device_memory = {};
  std::uint32_t device_memory = 0;  ///< SR_MEMORY_... of that memory
};

/// Whether a transport moves the memory of a device that the host cannot address, in the order of the device's queues.
[[nodiscard]] bool moves_memory_of(const device::Device& device, const sdk::Props& props);

/// Asks the transports for the scratch of a transfer. `set` outlives the result, which throws Error where a transport
/// lacks an operation on the device's memory that can be made of others in host memory alone.
[[nodiscard]] partition::TransferScratch scratch_of(const TransportSet& set);

/// The bytes of hashes of checked transfers. `set` outlives the result.
[[nodiscard]] partition::TransferChecks checks_of(const TransportSet& set);

/// Runs a rank's transfers over open transports. There is one group along each mesh axis, and one for each link to or
/// from another stage.
class Collectives final : public Communicator, private QueuedTransfers {
 public:
  /// Registers the memory that transfers use and connects the groups, which waits for the other ranks. `device`: of the
  /// memory. `timeout_s`: for connecting, for preparing and for each transfer. Started operations go into `record`.
  /// REQUIRES: `set` and `record` outlive this, and `memory` the transports in `set`. Throws Error.
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

  // Operations that no program has planned, with memory that is not registered.

  /// The number of the group along a mesh axis. REQUIRES: the axis has several ranks.
  [[nodiscard]] std::size_t group_along(mesh::AxisId axis) const;
  /// Connects a further group, over the transport of the first axis, and returns its number. `id`: from 1, the same on
  /// all members and different for each group. All ranks call it in one order. Throws Error.
  [[nodiscard]] std::size_t connect(const std::string& name, std::uint64_t id, const std::vector<std::int64_t>& members,
                                    std::int64_t rank);
  /// Prepares and starts an operation, which ends with finish_once(). Members start those of a group in one order. The
  /// group numbers `op`. Throws Error.
  [[nodiscard]] Handle start_once(std::size_t group, sdk::OpSpec op);
  [[nodiscard]] bool test_once(Handle op) { return once_.at(op).op.test(); }
  /// Waits and frees it. Returns its times, if the transport tells them. Throws its error.
  std::optional<Times> finish_once(Handle op);
  /// Whether there is one that has not ended with finish_once().
  [[nodiscard]] bool has_once() const noexcept { return !once_.empty(); }
  /// Frees those that are under way. REQUIRES: abort() was called.
  void drop_once() noexcept { once_.clear(); }

  /// Fails all present and later operations. Any thread.
  void abort(const std::string& reason) noexcept override;

 private:
  struct Group {
    mesh::AxisId axis;
    partition::Link link;  ///< or none: a group along the axis
    plugins::TransportGroup group;
    std::uint32_t recorded = 0;  ///< its number in the flight record
    std::uint64_t ops = 0;       ///< ops prepared so far; all members prepare them in one order
  };

  /// A prepared operation, and its number in the flight record.
  struct Op {
    plugins::TransportOp op;
    std::uint32_t recorded = 0;
    std::int64_t exposed_before = 0;              ///< `exposed_ns_` when it was started
    std::optional<Times> times = std::nullopt;    ///< of its latest run, after the wait
    std::vector<std::uint32_t>* reuse = nullptr;  ///< of an operation that is not planned: where its number goes then
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

  /// `act` starts it.
  template <typename Act>
  void start_by(Op& op, const Act& act);
  void finish(Op& op);
  void start(Op& op);
  void wait(Op& op);

  TransportSet& set_;
  const mesh::Mesh mesh_;
  std::int64_t timeout_ns_;
  std::uint32_t unit_;                        ///< of the device's memory
  std::vector<std::uint64_t> registrations_;  ///< per transport, of the memory that it uses
  std::mutex mutex_;                          ///< guards `groups_` while it grows
  std::vector<Group> groups_;
  std::vector<Op> ops_;
  std::map<Handle, Op> once_;
  Handle next_once_ = 0;
  /// Numbers in the flight record of operations that are not under way, by group, bytes and label.
  std::map<std::tuple<std::uint32_t, std::uint64_t, std::string>, std::vector<std::uint32_t>> recorded_once_;
  FlightRecorder& record_;
  std::int64_t exposed_ns_ = 0;
  std::int64_t hidden_ns_ = 0;
  Waits waits_;  ///< of queues
};

}  // namespace shardrun::runtime
