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

#include "transports/gloo/calls.h"
#include "transports/gloo/lane.h"
#include "transports/gloo/lockstep.h"
#include "transports/gloo/mesh.h"
#include "transports/gloo/post.h"
#include "transports/gloo/stages.h"
#include "transports/gloo/watchdog.h"

namespace shardrun::gloo_transport {

/// What groups read of the transport's options.
[[nodiscard]] std::vector<sdk::Option> group_options();

/// A group of more than one member: its connections and the thread that uses them.
class GlooGroup final : public sdk::Group, public Watched {
 public:
  /// Connects the members. All arguments but `spec` outlive this.
  GlooGroup(const sdk::Config& config, const sdk::GroupSpec& spec, std::shared_ptr<gloo::transport::Device>& device,
            std::uint64_t generation, Watchdog& watchdog, std::atomic<std::uint64_t>& wire_bytes);

  std::unique_ptr<sdk::Op> prepare(std::span<const sdk::OpSpec> ops, std::int64_t deadline) override;
  void abort(std::string_view reason) noexcept override;
  std::optional<sdk::TransportError> error() override;

  void look() noexcept override;
  void end_of_job() noexcept override;

 private:
  using Place = std::function<void*(std::uint32_t peer)>;

  void greet(const sdk::GroupSpec& spec);
  void agree(const sdk::OpSpec& op, std::int64_t deadline);
  /// Gives every other member a message of some bytes and takes one from it.
  void exchange(std::size_t bytes, const Place& given, const Place& taken);

  Mesh mesh_;
  Calls calls_;
  Lockstep lockstep_;
  StageBoxes stage_boxes_;
  Post post_;
  Lane lane_;          // after what its thread uses
  Watching watching_;  // after what it watches
};

}  // namespace shardrun::gloo_transport
