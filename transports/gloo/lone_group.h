#pragma once

#include <shardrun/sdk/transport.hpp>

#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string_view>

namespace shardrun::gloo_transport {

/// A group of one member: its ops are copies, made where they are started.
class LoneGroup final : public sdk::Group {
 public:
  std::unique_ptr<sdk::Op> prepare(std::span<const sdk::OpSpec> ops, std::int64_t deadline) override;
  void abort(std::string_view reason) noexcept override;
  std::optional<sdk::TransportError> error() override;

 private:
  std::mutex mutex_;
  std::optional<sdk::TransportError> failure_;
};

}  // namespace shardrun::gloo_transport
