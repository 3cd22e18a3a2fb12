#pragma once

#include <gloo/transport/context.h>
#include <gloo/transport/unbound_buffer.h>
#include <shardrun/sdk/transport.hpp>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace shardrun::gloo_transport {

/// Ends waits of a group inside Gloo. Gloo's own time limits name no rank, count time in which the process was
/// suspended, and do not end with the job. So Gloo waits without a limit, and a thread ends a wait at its deadline,
/// when the job ends, after `fail`, or if its connection broke in the middle of a message, which Gloo reports only to
/// transfers that have not begun. Any thread may use it.
class Waits {
 public:
  /// `host` outlives this object.
  Waits(const sdk::GroupSpec& group, const sdk::TransportHost& host);

  /// Sets the group's connections. Call it once, before any wait.
  void set_connections(std::shared_ptr<gloo::transport::Context> connections);

  /// Runs `act`, which calls Gloo about `peer`. Throws TransportError: SR_ABORTED after `fail` or the end of the job,
  /// otherwise SR_PEER_LOST if Gloo throws.
  void call(std::uint32_t peer, const std::function<void()>& act);
  /// Like call(), for an `act` that waits on `buffer` and returns whether the transfer is complete. Past `deadline` it
  /// throws SR_TIMEOUT.
  void wait(gloo::transport::UnboundBuffer& buffer, std::uint32_t peer, sdk::Deadline deadline,
            const std::function<bool()>& act);

  /// Ends all waits, present and later ones, and closes the connections. Does not wait itself.
  void fail() noexcept;

 private:
  struct Waiting {
    gloo::transport::UnboundBuffer& buffer;
    std::uint32_t peer = 0;
    sdk::Deadline deadline;
    std::chrono::nanoseconds probe_interval;
    sdk::Deadline next_probe;
    bool is_broken = false;  ///< the wait's connection is broken
    std::optional<sdk::TransportError> end = {};
  };

  void watch(const std::stop_token& stop);
  [[nodiscard]] std::optional<sdk::TransportError> end_of(Waiting& waiting);
  [[nodiscard]] bool is_broken(std::uint32_t peer);
  void require_running() const;
  void close() noexcept;
  [[nodiscard]] sdk::TransportError lost(std::uint32_t peer, const std::string& why) const;

  sdk::GroupSpec group_;
  sdk::TransportHost host_;
  std::shared_ptr<gloo::transport::Context> connections_;
  std::atomic<bool> failed_ = false;
  std::mutex mutex_;  ///< guards the next two, and what `waiting_` points to
  std::condition_variable_any changed_;
  std::vector<Waiting*> waiting_;
  std::jthread watcher_;  // last, because it uses the members above
};

}  // namespace shardrun::gloo_transport
