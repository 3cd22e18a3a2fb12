#pragma once

#include <shardrun/sdk/transport.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "transports/gloo/full_mesh.h"
#include "transports/gloo/one_shot.h"
#include "transports/gloo/op_queue.h"
#include "transports/gloo/point_to_point.h"
#include "transports/gloo/prepared_collectives.h"
#include "transports/gloo/staged.h"
#include "transports/gloo/watchdog.h"

namespace shardrun::gloo_transport {

/// The transport's options that groups read.
[[nodiscard]] std::vector<sdk::Option> group_options();

/// A group of more than one member: its connections, and the thread that uses them.
class GlooGroup final : public sdk::Group, public Watched {
 public:
  /// Connects the members. All arguments except `spec` outlive this.
  GlooGroup(const sdk::Config& config, const sdk::GroupSpec& spec, std::shared_ptr<gloo::transport::Device>& device,
            std::uint64_t generation, Watchdog& watchdog, std::atomic<std::uint64_t>& wire_bytes);

  std::unique_ptr<sdk::Op> prepare(std::span<const sdk::OpSpec> ops, std::int64_t deadline) override;
  void abort(std::string_view reason) noexcept override;
  std::optional<sdk::TransportError> error() override;

  void check() noexcept override;
  void on_job_end() noexcept override;

 private:
  using BufferOf = std::function<void*(std::uint32_t peer)>;

  void confirm_connections(const sdk::GroupSpec& spec);
  void agree(const sdk::OpSpec& op, std::int64_t deadline);
  /// Sends `bytes` bytes to every other member and receives as many from it.
  void exchange(std::size_t bytes, const BufferOf& sent, const BufferOf& received);

  FullMesh mesh_;
  PreparedCollectives prepared_;
  OneShot one_shot_;
  StagedMessages staged_messages_;
  PointToPoint point_to_point_;
  OpQueue queue_;      // destroyed first: its thread uses the members above
  Watching watching_;  // destroyed before what it watches
};

}  // namespace shardrun::gloo_transport
