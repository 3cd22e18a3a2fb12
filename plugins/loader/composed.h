#pragma once

#include <shardrun/sdk/worker.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "plugins/loader/transport_state.h"

namespace shardrun::plugins {

/// Collectives that a transport does not offer, made of its sends and receives in the background. They have a group of
/// the plugin's and a thread for themselves: all calls for that group are that thread's. It fails together with the
/// plugin's group that it stands beside.
class ComposedGroup {
 public:
  /// `beside` outlives this.
  ComposedGroup(const TransportGroup::State& beside, std::int64_t deadline);
  ComposedGroup(const ComposedGroup&) = delete;
  ComposedGroup& operator=(const ComposedGroup&) = delete;
  ~ComposedGroup();

  [[nodiscard]] sdk::Worker& worker() noexcept { return worker_; }

  /// Fails the worker if the group beside has failed.
  void look_beside();

  /// Numbers the ops in the order in which members prepare them, the same on all.
  [[nodiscard]] std::uint64_t next_serial() noexcept { return ++serial_; }

  // On the worker's thread. They throw sdk::TransportError.
  [[nodiscard]] std::uint64_t prepare(std::vector<sdk::OpSpec> batch, std::int64_t deadline);
  void start_and_wait(std::uint64_t batch, std::int64_t deadline);
  void free(std::uint64_t batch) noexcept;

 private:
  /// Lets the worker go from what it waits for, and whoever waits in the group beside. Any thread.
  void abort_both() noexcept;
  [[nodiscard]] std::optional<sdk::TransportError> error_beside() const;

  const TransportGroup::State& beside_;
  const TransportState& transport_;
  std::uint64_t handle_ = 0;
  std::uint64_t serial_ = 0;
  std::map<std::uint64_t, std::vector<std::byte>> scratch_;  ///< of the prepared batches that take some
  sdk::Worker worker_;
};

/// What an op takes that is made of sends and receives; `in_order`: see OpRequest.
[[nodiscard]] std::uint64_t composed_scratch_bytes(const sdk::OpSpec& op, std::uint32_t members, bool in_order);

/// `op` has the scratch that it needs, which may be `scratch`. Waits for the other members, which prepare the same op.
/// Throws Error, also where they do not.
[[nodiscard]] std::unique_ptr<TransportOp::State> compose_op(std::shared_ptr<TransportGroup::State> group,
                                                             const sdk::OpSpec& op, bool in_order,
                                                             std::vector<std::byte> scratch, std::int64_t deadline);

}  // namespace shardrun::plugins
