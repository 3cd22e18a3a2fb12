#pragma once

#include <shardrun/sdk/transport/worker.hpp>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>

#include "plugins/loader/transport_state.h"

namespace shardrun::plugins {

/// A short task for a worker. The caller waits for the end of the task. `act` gets the task's deadline.
template <class Act>
class Errand final : public sdk::Worker::Task {
 public:
  Errand(std::string what, Act act) : what_(std::move(what)), act_(std::move(act)) {}

 private:
  void run(sdk::Deadline deadline) override { act_(deadline); }
  [[nodiscard]] std::string what() const override { return what_; }

  std::string what_;
  Act act_;
};

/// Runs one of the plugin's ops on a worker's thread: starts the op, waits for it, and does the worker's clean-ups
/// meanwhile. Asks `failure` now and then for a reason to give up. Throws that reason or the op's sdk::TransportError.
void run_in_background(const TransportState& transport, std::uint64_t op, sdk::Deadline deadline, sdk::Worker& worker,
                       const std::function<std::optional<sdk::TransportError>()>& failure);

/// Frees one of the plugin's ops. REQUIRES: the calling thread is the one that runs the ops of the op's group.
void free_op(const TransportState& transport, std::uint64_t op) noexcept;

}  // namespace shardrun::plugins
