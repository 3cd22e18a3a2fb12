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

/// What two members exchange, in streams that have nothing to do with each other. Within one, the k-th send of one
/// member is the k-th receive of the other. Every op runs alone in its group, but for the agreement of those that are
/// being prepared, so that no two ever use one stream at a time.
enum class Stream : std::uint64_t {
  agreement,    ///< what members say of an op that they prepare, after a first word
  lockstep,     ///< short messages of ops in which every member hears from every other
  stage,        ///< short messages of the other collectives
  stage_data,   ///< long ones, straight between the ops' buffers: every op has its own
  letters,      ///< short messages of sends, and the announcements of long ones
  letter_data,  ///< long ones: each has its own
  probe,        ///< receives that nobody ever sends to
};

[[nodiscard]] constexpr std::uint64_t slot_of(Stream stream, std::uint64_t serial = 0) noexcept {
  return serial << 8 | static_cast<std::uint64_t>(stream);
}

/// Memory that messages are sent from or received into. It has at most one transfer under way. Its destructor waits
/// until Gloo does not touch the memory any more.
using GlooBuffer = std::unique_ptr<gloo::transport::UnboundBuffer>;

/// Connections between all members of a group. After `fail` nothing can be sent or received.
class Mesh {
 public:
  /// Connects as connect_members does. `wire_bytes` outlives this.
  Mesh(const sdk::Config& config, const sdk::GroupSpec& group, std::shared_ptr<gloo::transport::Device>& device,
       std::uint64_t generation, std::atomic<std::uint64_t>& wire_bytes);
  ~Mesh();
  Mesh(const Mesh&) = delete;
  Mesh& operator=(const Mesh&) = delete;

  [[nodiscard]] std::uint32_t rank() const noexcept { return group_.rank; }
  [[nodiscard]] std::uint32_t size() const noexcept { return group_.size(); }
  [[nodiscard]] std::string name_of(std::uint32_t peer) const { return group_.name_of(peer); }

  [[nodiscard]] GlooBuffer buffer(void* data, std::size_t bytes);

  // Both return at once. They throw TransportError, as the waits do: SR_PEER_LOST where the connection broke,
  // SR_ABORTED after `fail`.
  void send(gloo::transport::UnboundBuffer& from, std::uint32_t peer, std::uint64_t slot, std::size_t bytes);
  void receive(gloo::transport::UnboundBuffer& into, std::uint32_t peer, std::uint64_t slot, std::size_t bytes);
  /// Until the last byte is in the hands of the system.
  void wait_sent(gloo::transport::UnboundBuffer& from, std::uint32_t peer);
  void wait_received(gloo::transport::UnboundBuffer& into, std::uint32_t peer);

  /// Any thread: whatever waits gives up, and peers see their connections closed.
  void fail() noexcept;

  /// Any thread, every now and then: ends waits that Gloo forgets. Where a connection breaks it tells those whose
  /// transfer was to come, but not those in the middle of one.
  void check_connections() noexcept;

  /// Any thread: those that `thread` waits for now.
  [[nodiscard]] sdk::AwaitedRanks awaited_by(std::thread::id thread);

 private:
  class Waiting;

  template <class Act>
  void talking_to(std::uint32_t peer, Act act);
  void require_alive(std::uint32_t peer) const;
  [[nodiscard]] sdk::TransportError lost(std::uint32_t peer, const std::string& why) const;
  [[nodiscard]] bool is_broken(std::uint32_t peer);
  [[nodiscard]] std::uint64_t on_wire(std::uint32_t peer, std::uint64_t bytes) const noexcept;

  sdk::GroupSpec group_;
  sdk::TransportHost host_;
  std::atomic<std::uint64_t>& wire_bytes_;
  std::vector<Protection> protections_;  ///< of the connection to each member
  std::unique_ptr<gloo::Context> context_;
  std::mutex mutex_;  // of `waiting_` and what it points to
  std::vector<Waiting*> waiting_;
  char nothing_ = 0;
  GlooBuffer probe_;  ///< see check_connections
  std::atomic<bool> failed_ = false;
};

}  // namespace shardrun::gloo_transport
