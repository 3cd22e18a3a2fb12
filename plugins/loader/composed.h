#pragma once

#include <shardrun/sdk/worker.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "plugins/loader/transport_state.h"

namespace shardrun::plugins {

/// Collectives that a transport does not offer, made of its sends and receives in the background. They have a group of
/// the plugin's and a thread for themselves: all calls for that group are that thread's.
class ComposedGroup {
 public:
  ComposedGroup(const TransportState& transport, const GroupRequest& request);
  ComposedGroup(const ComposedGroup&) = delete;
  ComposedGroup& operator=(const ComposedGroup&) = delete;
  ~ComposedGroup();

  [[nodiscard]] sdk::Worker& worker() noexcept { return worker_; }
  [[nodiscard]] std::optional<std::string> error();

  /// Numbers the ops in the order in which members prepare them, the same on all.
  [[nodiscard]] std::uint64_t next_serial() noexcept { return ++serial_; }

  // On the worker's thread. They throw sdk::TransportError.
  [[nodiscard]] std::uint64_t prepare(const std::vector<sdk::OpSpec>& batch, std::int64_t deadline);
  void start_and_wait(std::uint64_t batch, std::int64_t deadline);
  void free(std::uint64_t batch) noexcept;

 private:
  /// Lets the worker go from what it waits for. Any thread.
  void abort_transfers() noexcept;

  const TransportState& transport_;
  std::uint64_t handle_ = 0;
  std::uint64_t serial_ = 0;
  sdk::Worker worker_;
};

/// Null where the transport offers every collective for groups of this size. Throws Error.
[[nodiscard]] std::unique_ptr<ComposedGroup> compose_group(const TransportState& transport,
                                                           const GroupRequest& request);

/// `op` has the scratch that it needs, which may be `scratch`. Waits for the other members, which prepare the same op.
/// Throws Error, also where they do not.
[[nodiscard]] std::unique_ptr<TransportOp::State> compose_op(std::shared_ptr<TransportGroup::State> group,
                                                             const sdk::OpSpec& op, std::vector<std::byte> scratch,
                                                             std::int64_t deadline);

}  // namespace shardrun::plugins
