#include "transports/gloo/waits.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <string_view>
#include <utility>

namespace shardrun::gloo_transport {
namespace {

using sdk::TransportError;

constexpr std::chrono::milliseconds period(20);

/// How long a wait lasts before its connection is probed. If the probe finds the connection broken, the wait is ended
/// after as long again: the message may have arrived before the connection broke.
constexpr std::chrono::milliseconds first_interval(400);
/// The longest time between two probes. Each probe stays in Gloo until the connection ends, so they become rarer.
constexpr std::chrono::seconds longest_interval(30);

/// The slot of probes, to which no one sends. The slots of Gloo's collectives, and those of plugin.cpp, are larger.
constexpr std::uint64_t probe_slot = 0;

/// The reason without the "[file:line] " that Gloo puts before it.
std::string reason_of(const std::exception& error) {
  const std::string_view text = error.what();
  const std::size_t end = text.find("] ");
  return std::string(text.substr(text.starts_with('[') && end != std::string_view::npos ? end + 2 : 0));
}

}  // namespace

Waits::Waits(const sdk::GroupSpec& group, const sdk::TransportHost& host)
    : group_(group), host_(host), watcher_([this](const std::stop_token& stop) { watch(stop); }) {}

void Waits::set_connections(std::shared_ptr<gloo::transport::Context> connections) {
  const std::lock_guard lock(mutex_);
  connections_ = std::move(connections);
}

void Waits::call(std::uint32_t peer, const std::function<void()>& act) {
  try {
    act();
  } catch (const TransportError&) {
    throw;
  } catch (const std::exception& error) {  // Gloo throws several unrelated types
    require_running();                     // if the group failed, that has closed the connection
    throw lost(peer, reason_of(error));
  }
}

void Waits::wait(gloo::transport::UnboundBuffer& buffer, std::uint32_t peer, sdk::Deadline deadline,
                 const std::function<bool()>& act) {
  Waiting waiting{buffer, peer, deadline, first_interval, sdk::Deadline::now() + first_interval};
  {
    const std::lock_guard lock(mutex_);
    require_running();
    waiting_.push_back(&waiting);
  }
  struct Removal {
    ~Removal() {
      const std::lock_guard lock(waits.mutex_);
      std::erase(waits.waiting_, &waiting);
    }
    Waits& waits;
    Waiting& waiting;
  };
  const Removal removal{*this, waiting};
  call(peer, [&] {
    if (!act()) {
      const std::lock_guard lock(mutex_);
      throw TransportError(waiting.end.value());
    }
  });
}

void Waits::fail() noexcept {
  failed_ = true;
  changed_.notify_all();
}

void Waits::watch(const std::stop_token& stop) {
  bool is_closed = false;
  std::unique_lock lock(mutex_);
  while (!stop.stop_requested()) {
    for (Waiting* const waiting : waiting_) {
      waiting->end = waiting->end ? waiting->end : end_of(*waiting);
      if (waiting->end) {
        waiting->buffer.abortWaitSend();
        waiting->buffer.abortWaitRecv();
      }
    }
    if (failed_ && connections_ && !std::exchange(is_closed, true)) {
      lock.unlock();
      close();
      lock.lock();
    }
    changed_.wait_for(lock, stop, period, [&] { return failed_ && !is_closed; });
  }
}

/// Why the wait must end; nothing if it continues.
std::optional<TransportError> Waits::end_of(Waiting& waiting) {
  try {
    require_running();
  } catch (const TransportError& error) {
    return error;
  }
  const sdk::Deadline now = sdk::Deadline::now();
  if (now >= waiting.deadline) {
    return TransportError(SR_TIMEOUT, "past the deadline, waiting for " + group_.name_of(waiting.peer),
                          group_.members[waiting.peer]);
  }
  if (now >= waiting.next_probe) {
    if (waiting.is_broken) {
      return lost(waiting.peer, "its connection broke in the middle of a message");
    }
    waiting.is_broken = is_broken(waiting.peer);
    waiting.probe_interval = waiting.is_broken
                                 ? first_interval
                                 : std::min<std::chrono::nanoseconds>(2 * waiting.probe_interval, longest_interval);
    waiting.next_probe = now + waiting.probe_interval;
  }
  return std::nullopt;
}

/// Whether a connection is broken. Gloo refuses to post to a broken connection. On a working one this posts a receive
/// that no member sends to. Probes do not count as traffic, because their number depends on timing.
bool Waits::is_broken(std::uint32_t peer) {
  try {
    connections_->createUnboundBuffer(nullptr, 0)->recv(static_cast<int>(peer), probe_slot);
    return false;
  } catch (const std::exception&) {
    return true;
  }
}

void Waits::require_running() const {
  if (failed_) {
    throw TransportError(SR_ABORTED, "the group has failed");
  }
  if (host_.aborted()) {
    throw TransportError(SR_ABORTED, "the job ends");
  }
}

void Waits::close() noexcept {
  for (std::uint32_t peer = 0; peer < group_.size(); ++peer) {
    try {
      if (peer != group_.rank) {
        connections_->getPair(static_cast<int>(peer))->close();
      }
    } catch (const std::exception&) {
      // The connection is closed already.
    }
  }
}

TransportError Waits::lost(std::uint32_t peer, const std::string& why) const {
  return {SR_PEER_LOST, group_.name_of(peer) + " is lost: " + why, group_.members[peer]};
}

}  // namespace shardrun::gloo_transport
