#include "transports/gloo/full_mesh.h"

#include <shardrun/sdk/transport/worker.hpp>

#include <algorithm>
#include <chrono>
#include <exception>
#include <utility>

#include "transports/gloo/connecting.h"
#include "transports/gloo/records.h"
#include "transports/gloo/signals.h"

namespace shardrun::gloo_transport {
namespace {

using gloo::transport::UnboundBuffer;
using sdk::TransportError;

/// A wait that reaches Gloo's own time limit closes the whole context, so none ever does. The group keeps the
/// deadlines, and fails the mesh.
constexpr std::chrono::milliseconds for_ever = std::chrono::hours(24 * 365);

/// How often a long wait checks whether its connection broke. A break between messages ends the wait much sooner.
constexpr std::chrono::nanoseconds probe_interval = std::chrono::milliseconds(400);

/// Gloo sends a preamble before each message, another to announce it, and one for each receive.
constexpr std::uint64_t message_preamble_bytes = 6 * sizeof(std::size_t);

}  // namespace

/// Registers a wait, so that other threads can end it.
class FullMesh::Waiting {
 public:
  Waiting(FullMesh& mesh, UnboundBuffer& buffer, std::uint32_t peer) : mesh_(mesh), buffer_(buffer), peer_(peer) {
    const std::lock_guard lock(mesh_.mutex_);
    mesh_.require_alive(peer);
    mesh_.waiting_.push_back(this);
  }
  ~Waiting() {
    const std::lock_guard lock(mesh_.mutex_);
    mesh_.waiting_.erase(std::find(mesh_.waiting_.begin(), mesh_.waiting_.end(), this));
  }
  Waiting(const Waiting&) = delete;
  Waiting& operator=(const Waiting&) = delete;

  [[nodiscard]] std::thread::id thread() const noexcept { return thread_; }
  [[nodiscard]] std::uint32_t peer() const noexcept { return peer_; }

  // REQUIRES: the mesh's mutex is held.
  void end() {
    buffer_.abortWaitSend();
    buffer_.abortWaitRecv();
  }
  void check_connection(sdk::Deadline now) {
    if (now < next_check_) {
      return;
    }
    next_check_ = now + probe_interval;
    if (is_broken_) {
      end();
    } else {
      is_broken_ = mesh_.is_broken(peer_);
    }
  }

  /// REQUIRES: the wait was ended.
  [[nodiscard]] TransportError error() const {
    const std::lock_guard lock(mesh_.mutex_);
    return is_broken_ ? mesh_.lost(peer_, "its connection broke in the middle of a message")
                      : TransportError(SR_ABORTED, "the exchange with " + mesh_.name_of(peer_) + " was given up");
  }

 private:
  FullMesh& mesh_;
  UnboundBuffer& buffer_;
  std::uint32_t peer_;
  std::thread::id thread_ = std::this_thread::get_id();
  sdk::Deadline next_check_ = sdk::Deadline::now() + probe_interval;
  bool is_broken_ = false;
};

FullMesh::FullMesh(const sdk::Config& config, const sdk::GroupSpec& group,
                   std::shared_ptr<gloo::transport::Device>& device, std::uint64_t generation,
                   std::atomic<std::uint64_t>& wire_bytes)
    : group_(group), host_(config.host), wire_bytes_(wire_bytes) {
  waiting_.reserve(2);
  const NoSigpipe no_sigpipe;
  try {
    Connections connections = connect_members(config, group, device, generation);
    context_ = std::move(connections.context);
    protections_ = std::move(connections.protections);
  } catch (const TransportError& error) {
    throw error.within("connecting the group '" + group.name + "'");
  }
  probe_ = buffer(&nothing_, sizeof(nothing_));
}

FullMesh::~FullMesh() {
  const NoSigpipe no_sigpipe;
  probe_.reset();
  context_.reset();
}

GlooBuffer FullMesh::buffer(void* data, std::size_t bytes) { return context_->createUnboundBuffer(data, bytes); }

void FullMesh::require_alive(std::uint32_t peer) const {
  if (failed_.load(std::memory_order_acquire)) {
    throw TransportError(SR_ABORTED, name_of(peer) + ": the group has failed");
  }
}

TransportError FullMesh::lost(std::uint32_t peer, const std::string& why) const {
  return {SR_PEER_LOST, name_of(peer) + " is lost: " + why, group_.members[peer]};
}

template <class Act>
void FullMesh::with_peer_errors(std::uint32_t peer, Act act) {
  try {
    act();
  } catch (const TransportError&) {
    throw;
  } catch (const std::exception& error) {  // Gloo throws several unrelated types
    require_alive(peer);
    if (host_.aborted()) {
      throw TransportError(SR_ABORTED, "the job ends");  // the end of the job closed the connection
    }
    throw lost(peer, reason_of(error));
  }
}

void FullMesh::send(UnboundBuffer& from, std::uint32_t peer, std::uint64_t slot, std::size_t bytes) {
  with_peer_errors(peer, [&] { from.send(static_cast<int>(peer), slot, 0, bytes); });
  wire_bytes_.fetch_add(2 * on_wire(peer, message_preamble_bytes) + on_wire(peer, bytes), std::memory_order_relaxed);
}

void FullMesh::receive(UnboundBuffer& into, std::uint32_t peer, std::uint64_t slot, std::size_t bytes) {
  with_peer_errors(peer, [&] { into.recv(static_cast<int>(peer), slot, 0, bytes); });
  wire_bytes_.fetch_add(on_wire(peer, message_preamble_bytes), std::memory_order_relaxed);
}

std::uint64_t FullMesh::on_wire(std::uint32_t peer, std::uint64_t bytes) const noexcept {
  return bytes + bytes_of_tags(protections_[peer], bytes);
}

void FullMesh::wait_sent(UnboundBuffer& from, std::uint32_t peer) {
  with_peer_errors(peer, [&] {
    const Waiting waiting(*this, from, peer);
    if (!from.waitSend(for_ever)) {
      throw waiting.error();
    }
  });
}

void FullMesh::wait_received(UnboundBuffer& into, std::uint32_t peer) {
  with_peer_errors(peer, [&] {
    const Waiting waiting(*this, into, peer);
    if (!into.waitRecv(for_ever)) {
      throw waiting.error();
    }
  });
}

void FullMesh::fail() noexcept {
  {
    const std::lock_guard lock(mutex_);
    failed_.store(true, std::memory_order_release);
    for (Waiting* waiting : waiting_) {
      waiting->end();
    }
  }
  try {
    context_->closeConnections();
  } catch (const std::exception&) {
    // They are closed already.
  }
}

/// Gloo refuses to post to a broken connection. On a good one this posts a receive that no member sends to. It is not
/// counted as traffic: how often it happens depends on timing.
bool FullMesh::is_broken(std::uint32_t peer) {
  try {
    with_peer_errors(peer, [&] { probe_->recv(static_cast<int>(peer), slot_of(Channel::probe), 0, 0); });
    return false;
  } catch (const TransportError&) {
    return true;
  }
}

void FullMesh::check_connections() noexcept {
  const sdk::Deadline now = sdk::Deadline::now();
  const std::lock_guard lock(mutex_);
  for (Waiting* waiting : waiting_) {
    waiting->check_connection(now);
  }
}

sdk::AwaitedRanks FullMesh::awaited_by(std::thread::id thread) {
  sdk::AwaitedRanks awaited;
  const std::lock_guard lock(mutex_);
  for (const Waiting* const waiting : waiting_) {
    if (waiting->thread() == thread) {
      awaited.add(name_of(waiting->peer()), group_.members[waiting->peer()]);
    }
  }
  return awaited;
}

}  // namespace shardrun::gloo_transport
