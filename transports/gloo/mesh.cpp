#include "transports/gloo/mesh.h"

#include <gloo/transport/context.h>
#include <gloo/transport/pair.h>
#include <shardrun/sdk/worker.hpp>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <string_view>
#include <thread>

#include "transports/gloo/signals.h"

namespace shardrun::gloo_transport {
namespace {

using gloo::transport::UnboundBuffer;
using sdk::TransportError;

/// A wait that runs into Gloo's own time limit closes the whole context, so none ever does: deadlines are kept by the
/// group, which fails the mesh.
constexpr std::chrono::milliseconds for_ever = std::chrono::hours(24 * 365);

/// How often a wait for the store or a connection looks whether the job is to end.
constexpr std::chrono::milliseconds glance(50);

/// How often a long wait looks whether its connection broke. What came before it broke wakes the wait much sooner.
constexpr std::chrono::nanoseconds probing = std::chrono::milliseconds(400);

/// Before each message Gloo sends a preamble; before that, announces it with another; and each receive is announced.
constexpr std::uint64_t preamble_bytes = 6 * sizeof(std::size_t);

/// Gloo's reasons begin with "[file:line] ".
std::string reason_of(const std::exception& error) {
  const std::string_view text = error.what();
  const std::size_t end = text.find("] ");
  return std::string(text.substr(text.starts_with('[') && end != std::string_view::npos ? end + 2 : 0));
}

/// The members are part of the key: groups of the same id need not share members.
std::string prefix_of(const sdk::Config& config, const sdk::GroupSpec& group, std::uint64_t generation) {
  std::string prefix = "gloo/" + config.job + "/" + std::to_string(group.id) + "/" + std::to_string(generation);
  for (const std::uint32_t member : group.members) {
    prefix += "," + std::to_string(member);
  }
  return prefix + "/";
}

/// What the host's store has for `key`. The host's wait is cut into slices, so that the end of the job is seen.
std::string store_get(const sdk::Config& config, const std::string& key, std::int64_t deadline, std::size_t capacity) {
  for (;;) {
    if (config.host.aborted()) {
      throw TransportError(SR_ABORTED, "the job ends while '" + key + "' is waited for");
    }
    const std::int64_t slice = sdk::steady_now() + std::chrono::nanoseconds(glance).count();
    try {
      return config.host.store_get(key, std::min(slice, deadline), capacity);
    } catch (const TransportError& error) {
      if (error.status() != SR_TIMEOUT || sdk::steady_now() >= deadline) {
        throw;
      }
    }
  }
}

/// Addresses of a member's listeners, one for each peer, of one size.
std::string pack(const std::vector<std::vector<char>>& addresses) {
  std::string packed;
  for (const std::vector<char>& address : addresses) {
    packed.append(address.data(), address.size());
  }
  return packed;
}

}  // namespace

/// A Gloo context whose connections are made here: Gloo's own way, connectFullMesh, waits up to five times its timeout
/// and cannot be interrupted.
class Mesh::Context : public gloo::Context {
 public:
  Context(std::uint32_t rank, std::uint32_t size, std::shared_ptr<gloo::transport::Device>& device)
      : gloo::Context(static_cast<int>(rank), static_cast<int>(size)) {
    device_ = device;
    transportContext_ = device->createContext(static_cast<int>(rank), static_cast<int>(size));
  }

  /// The address that `peer` connects to. `patience` bounds the connecting; Gloo waits for five times what it is told.
  std::vector<char> listen(std::uint32_t peer, std::chrono::milliseconds patience) {
    transportContext_->setTimeout(std::max(patience / 5, std::chrono::milliseconds(1)));
    return transportContext_->createPair(static_cast<int>(peer))->address().bytes();
  }
};

/// Registers a wait, so that others can end it.
class Mesh::Waiting {
 public:
  Waiting(Mesh& mesh, UnboundBuffer& buffer, std::uint32_t peer) : mesh_(mesh), buffer_(buffer), peer_(peer) {
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

  // Under the mesh's mutex.
  void end() {
    buffer_.abortWaitSend();
    buffer_.abortWaitRecv();
  }
  void check_connection(std::int64_t now) {
    if (now < next_look_) {
      return;
    }
    next_look_ = now + probing.count();
    if (is_broken_) {
      end();
    } else {
      is_broken_ = mesh_.is_broken(peer_);
    }
  }

  /// Of a wait that was ended.
  [[nodiscard]] TransportError error() const {
    return is_broken_ ? TransportError(SR_PEER_LOST, mesh_.name_of(peer_) +
                                                         " is lost: its connection broke in the middle of a message")
                      : TransportError(SR_ABORTED, "the exchange with " + mesh_.name_of(peer_) + " was given up");
  }

 private:
  Mesh& mesh_;
  UnboundBuffer& buffer_;
  std::uint32_t peer_;
  std::int64_t next_look_ = sdk::steady_now() + probing.count();
  bool is_broken_ = false;
};

Mesh::Mesh(const sdk::Config& config, const sdk::GroupSpec& group, std::shared_ptr<gloo::transport::Device>& device,
           std::uint64_t generation, std::atomic<std::uint64_t>& wire_bytes)
    : group_(group),
      host_(config.host),
      wire_bytes_(wire_bytes),
      context_(std::make_unique<Context>(group.rank, group.size(), device)) {
  waiting_.reserve(2);
  probe_ = buffer(&nothing_, sizeof(nothing_));
  const NoSigpipe no_sigpipe;
  try {
    connect(config, prefix_of(config, group, generation));
  } catch (const TransportError& error) {
    throw TransportError(error.status(), "connecting the group '" + group.name + "': " + error.what());
  }
}

Mesh::~Mesh() {
  const NoSigpipe no_sigpipe;
  probe_.reset();
  context_.reset();
}

void Mesh::connect(const sdk::Config& config, const std::string& prefix) {
  const auto patience = std::chrono::duration_cast<std::chrono::milliseconds>(
      std::chrono::nanoseconds(group_.deadline - std::min(group_.deadline, sdk::steady_now())));
  std::vector<std::vector<char>> addresses(size());
  try {
    for (std::uint32_t peer = 0; peer < size(); ++peer) {
      if (peer != rank()) {
        addresses[peer] = context_->listen(peer, std::min(patience, for_ever));
      }
    }
  } catch (const std::exception& error) {
    throw TransportError(SR_INVALID, "cannot listen on '" + config.address + "': " + reason_of(error) +
                                         "; the address has to be one of this machine's");
  }
  const std::size_t each = addresses[rank() == 0 ? 1 : 0].size();
  addresses[rank()].resize(each);
  config.host.store_set(prefix + std::to_string(rank()), pack(addresses));

  std::atomic<bool> aborted = false;
  std::mutex mutex;
  std::condition_variable connected;
  bool is_connected = false;
  // Gloo's connecting sees nothing but the connections: somebody else has to close them where the job ends.
  std::thread watcher([&] {
    std::unique_lock lock(mutex);
    while (!connected.wait_for(lock, glance, [&] { return is_connected; })) {
      if (config.host.aborted()) {
        aborted = true;
        fail();
        return;
      }
    }
  });
  const auto stop_watching = [&] {
    {
      const std::lock_guard lock(mutex);
      is_connected = true;
    }
    connected.notify_all();
    watcher.join();
  };
  try {
    for (std::uint32_t peer = 0; peer < size(); ++peer) {
      if (peer == rank()) {
        continue;
      }
      const std::string packed =
          store_get(config, prefix + std::to_string(peer), group_.deadline, each * size());
      if (packed.size() != each * size()) {
        throw TransportError(SR_INTERNAL, name_of(peer) + " published addresses of another size");
      }
      talking_to(peer, [&] {
        const char* begin = packed.data() + each * rank();
        context_->getPair(static_cast<int>(peer))->connect({begin, begin + each});
      });
    }
  } catch (const TransportError& error) {
    stop_watching();
    if (aborted) {
      throw TransportError(SR_ABORTED, "the job ends");
    }
    if (error.status() == SR_PEER_LOST && sdk::steady_now() >= group_.deadline) {
      throw TransportError(SR_TIMEOUT, error.what());
    }
    throw;
  }
  stop_watching();
  if (aborted) {
    throw TransportError(SR_ABORTED, "the job ends");
  }
}

std::string Mesh::name_of(std::uint32_t peer) const {
  return "member " + std::to_string(peer) + " (rank " + std::to_string(group_.members[peer]) + ")";
}

GlooBuffer Mesh::buffer(void* data, std::size_t bytes) { return context_->createUnboundBuffer(data, bytes); }

void Mesh::require_alive(std::uint32_t peer) const {
  if (failed_.load(std::memory_order_acquire)) {
    throw TransportError(SR_ABORTED, name_of(peer) + ": the group has failed");
  }
}

template <class Act>
void Mesh::talking_to(std::uint32_t peer, Act act) {
  try {
    act();
  } catch (const TransportError&) {
    throw;
  } catch (const std::exception& error) {  // Gloo has several bases
    require_alive(peer);
    if (host_.aborted()) {
      throw TransportError(SR_ABORTED, "the job ends");  // which closed the connection
    }
    throw TransportError(SR_PEER_LOST, name_of(peer) + " is lost: " + reason_of(error));
  }
}

void Mesh::send(UnboundBuffer& from, std::uint32_t peer, std::uint64_t slot, std::size_t bytes) {
  talking_to(peer, [&] { from.send(static_cast<int>(peer), slot, 0, bytes); });
  wire_bytes_.fetch_add(2 * preamble_bytes + bytes, std::memory_order_relaxed);
}

void Mesh::receive(UnboundBuffer& into, std::uint32_t peer, std::uint64_t slot, std::size_t bytes) {
  talking_to(peer, [&] { into.recv(static_cast<int>(peer), slot, 0, bytes); });
  wire_bytes_.fetch_add(preamble_bytes, std::memory_order_relaxed);
}

void Mesh::wait_sent(UnboundBuffer& from, std::uint32_t peer) {
  talking_to(peer, [&] {
    const Waiting waiting(*this, from, peer);
    if (!from.waitSend(for_ever)) {
      throw waiting.error();
    }
  });
}

void Mesh::wait_received(UnboundBuffer& into, std::uint32_t peer) {
  talking_to(peer, [&] {
    const Waiting waiting(*this, into, peer);
    if (!into.waitRecv(for_ever)) {
      throw waiting.error();
    }
  });
}

void Mesh::fail() noexcept {
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
    // Closed already.
  }
}

/// Gloo refuses to post to a broken connection. Where it is whole, a receive is announced that nobody sends to.
bool Mesh::is_broken(std::uint32_t peer) {
  try {
    receive(*probe_, peer, slot_of(Stream::probe), 0);
    return false;
  } catch (const TransportError&) {
    return true;
  }
}

void Mesh::check_connections() noexcept {
  const std::int64_t now = sdk::steady_now();
  const std::lock_guard lock(mutex_);
  for (Waiting* waiting : waiting_) {
    waiting->check_connection(now);
  }
}

}  // namespace shardrun::gloo_transport
