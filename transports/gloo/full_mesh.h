#pragma once

#include <gloo/context.h>
#include <gloo/transport/device.h>
#include <gloo/transport/unbound_buffer.h>
#include <shardrun/sdk/transport.hpp>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "transports/gloo/connecting.h"

namespace shardrun::gloo_transport {

/// Independent channels between two members. Within a channel, the k-th send of one member matches the k-th receive of
/// the other. A group runs one op at a time, apart from the agreement of an op being prepared. So no two ops ever use
/// one channel at the same time.
enum class Channel : std::uint64_t {
  agreement,     ///< descriptions of an op being prepared, and the first message of a group
  one_shot,      ///< eager messages of one-shot ops
  stage,         ///< eager messages of staged ops
  stage_data,    ///< long messages of staged ops, directly between the ops' buffers; a slot for each op
  messages,      ///< eager messages of sends, and announcements of long ones
  message_data,  ///< long messages of sends; a slot for each
  probe,         ///< receives that no member ever sends to
};

[[nodiscard]] constexpr std::uint64_t slot_of(Channel channel, std::uint64_t serial = 0) noexcept {
  return serial << 8 | static_cast<std::uint64_t>(channel);
}

/// Memory that messages are sent from or received into, with at most one transfer in progress. The destructor waits
/// until Gloo no longer uses the memory.
using GlooBuffer = std::unique_ptr<gloo::transport::UnboundBuffer>;

/// Connections to all other members of a group. After `fail` nothing can be sent or received.
class FullMesh {
 public:
  /// Connects as connect_members does. `wire_bytes` outlives this.
  FullMesh(const sdk::Config& config, const sdk::GroupSpec& group, std::shared_ptr<gloo::transport::Device>& device,
           std::uint64_t generation, std::atomic<std::uint64_t>& wire_bytes);
  ~FullMesh();
  FullMesh(const FullMesh&) = delete;
  FullMesh& operator=(const FullMesh&) = delete;

  [[nodiscard]] std::uint32_t rank() const noexcept { return group_.rank; }
  [[nodiscard]] std::uint32_t size() const noexcept { return group_.size(); }
  [[nodiscard]] std::string name_of(std::uint32_t peer) const { return group_.name_of(peer); }

  [[nodiscard]] GlooBuffer buffer(void* data, std::size_t bytes);

  // Both return at once. They throw TransportError, as the waits do: SR_PEER_LOST where the connection broke,
  // SR_ABORTED after `fail`.
  void send(gloo::transport::UnboundBuffer& from, std::uint32_t peer, std::uint64_t slot, std::size_t bytes);
  void receive(gloo::transport::UnboundBuffer& into, std::uint32_t peer, std::uint64_t slot, std::size_t bytes);
  /// Waits until the kernel has taken the last byte.
  void wait_sent(gloo::transport::UnboundBuffer& from, std::uint32_t peer);
  void wait_received(gloo::transport::UnboundBuffer& into, std::uint32_t peer);

  /// Ends every wait and closes the connections. Any thread.
  void fail() noexcept;

  /// Ends waits on broken connections that Gloo does not end: it informs transfers that have not begun, but not one in
  /// progress. Call it periodically, on any thread.
  void check_connections() noexcept;

  /// The members that `thread` waits for now. Any thread.
  [[nodiscard]] sdk::AwaitedRanks awaited_by(std::thread::id thread);

 private:
  class Waiting;

  template <class Act>
  void with_peer_errors(std::uint32_t peer, Act act);
  void require_alive(std::uint32_t peer) const;
  [[nodiscard]] sdk::TransportError lost(std::uint32_t peer, const std::string& why) const;
  [[nodiscard]] bool is_broken(std::uint32_t peer);
  [[nodiscard]] std::uint64_t on_wire(std::uint32_t peer, std::uint64_t bytes) const noexcept;

  sdk::GroupSpec group_;
  sdk::TransportHost host_;
  std::atomic<std::uint64_t>& wire_bytes_;
  std::vector<Protection> protections_;  ///< of the connection to each member
  std::unique_ptr<gloo::Context> context_;
  std::mutex mutex_;  // guards `waiting_` and the objects that it points to
  std::vector<Waiting*> waiting_;
  char nothing_ = 0;
  GlooBuffer probe_;  ///< see check_connections
  std::atomic<bool> failed_ = false;
};

}  // namespace shardrun::gloo_transport
