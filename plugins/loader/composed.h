#pragma once

#include <shardrun/sdk/transport/worker.hpp>

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "plugins/loader/transport_state.h"

namespace shardrun::plugins {

/// Runs collectives that a transport lacks, and checked ops, as sends and receives in the background. It has a second
/// group of the plugin and a thread; only that thread runs ops of the second group. It fails together with `parent`,
/// the group whose collectives it runs.
class ComposedGroup {
 public:
  /// `parent` outlives this object.
  ComposedGroup(const TransportGroup::State& parent, std::int64_t deadline);
  ComposedGroup(const ComposedGroup&) = delete;
  ComposedGroup& operator=(const ComposedGroup&) = delete;
  ~ComposedGroup();

  [[nodiscard]] sdk::Worker& worker() noexcept { return worker_; }

  /// Fails the worker if the parent group has failed.
  void check_parent();

  /// The next number of an op. Members prepare ops in the same order, so they use the same numbers.
  [[nodiscard]] std::uint64_t next_serial() noexcept { return ++serial_; }

  // The following run on the worker's thread. They throw sdk::TransportError.
  [[nodiscard]] std::uint64_t prepare(std::vector<sdk::OpSpec> batch, sdk::Deadline deadline);
  void start_and_wait(std::uint64_t batch, sdk::Deadline deadline);
  void free(std::uint64_t batch) noexcept;

 private:
  /// Ends the worker's waits, and those in the parent group. Any thread may call it.
  void abort_both() noexcept;
  [[nodiscard]] std::optional<sdk::TransportError> parent_error() const;

  const TransportGroup::State& parent_;
  const TransportState& transport_;
  std::uint64_t handle_ = 0;
  std::uint64_t serial_ = 0;
  std::map<std::uint64_t, std::vector<std::byte>> scratch_;  ///< scratch of the prepared batches that need it
  sdk::Worker worker_;
};

/// The scratch bytes of an op that is made of sends and receives.
[[nodiscard]] std::uint64_t composed_scratch_bytes(const sdk::OpSpec& op, std::uint32_t members);

/// Prepares `op` as sends and receives. For a collective, waits for the other members, which prepare the same op. `op`
/// has the scratch that it needs, whose memory `scratch` can own. Throws Error, also if the members' ops do not match.
[[nodiscard]] std::unique_ptr<TransportOp::State> compose_op(std::shared_ptr<TransportGroup::State> group,
                                                             const sdk::OpSpec& op, std::vector<std::byte> scratch,
                                                             std::int64_t deadline);

}  // namespace shardrun::plugins
