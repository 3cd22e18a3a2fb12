#include "transports/gloo/rendezvous.h"

#include <poll.h>
#include <shardrun/sdk/transport/worker.hpp>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <utility>

namespace shardrun::gloo_transport {
namespace {

using sdk::TransportError;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;

/// How often a wait checks whether the job is to end.
constexpr milliseconds stop_check_interval(50);
/// A connection that is not authenticated by then is dropped.
constexpr std::chrono::seconds handshake_limit(10);
/// Before a failed connection is tried again: the first pause, and the longest.
constexpr milliseconds shortest_pause(5);
constexpr milliseconds longest_pause(200);
/// Before the listener accepts again, where no descriptor was free.
constexpr milliseconds accept_pause(20);
/// Connections accepted at a time. A flood of them must not starve the ones accepted before.
constexpr int most_at_a_time = 32;

sdk::Deadline in(nanoseconds time) { return sdk::Deadline::now() + time; }

}  // namespace

GroupRendezvous::GroupRendezvous(const sdk::GroupSpec& group, const sdk::TransportHost& host, const Key& secret,
                                 BindingOf binding_of, AddressOf address_of, Socket listener)
    : group_(group),
      host_(host),
      secret_(secret),
      binding_of_(std::move(binding_of)),
      address_of_(std::move(address_of)),
      listener_(std::move(listener)),
      proven_(group.size()) {
  for (std::uint32_t member = 0; member < group.rank; ++member) {
    attempts_.emplace_back().member = member;
  }
}

/// Requests the first address that is not known yet. Returns whether all are known.
bool GroupRendezvous::find_address() {
  const auto attempt = std::ranges::find_if(attempts_, [](const Attempt& each) { return each.to.bytes == 0; });
  if (attempt == attempts_.end()) {
    return true;
  }
  const std::optional<std::string> address = address_of_(attempt->member);
  if (address) {
    try {
      attempt->to = endpoint_of(*address);
    } catch (const std::runtime_error& error) {
      throw TransportError(
          SR_INTERNAL, group_.name_of(attempt->member) + " published an address that makes no sense: " + error.what());
    }
  }
  return false;
}

std::vector<std::optional<Handshake>> GroupRendezvous::run() {
  while (!is_complete()) {
    require_time();
    for (Attempt& each : attempts_) {
      attempt(each);
    }
    advance_incoming();
    accept_connections();
    if (!is_complete() && find_address()) {
      wait();
    }
  }
  strangers_ += incoming_.size();
  incoming_.clear();
  return std::move(proven_);
}

bool GroupRendezvous::is_complete() const {
  return static_cast<std::size_t>(std::ranges::count_if(
             proven_, [](const std::optional<Handshake>& proven) { return proven.has_value(); })) == group_.size() - 1;
}

void GroupRendezvous::require_time() {
  if (host_.aborted()) {
    throw TransportError(SR_ABORTED, "the job ends");
  }
  if (!group_.deadline.passed()) {
    return;
  }
  std::uint32_t missing = 0;
  while (missing == group_.rank || proven_[missing]) {
    ++missing;
  }
  std::string text = "past the deadline, waiting for " + group_.name_of(missing);
  for (const Attempt& attempt : attempts_) {
    if (attempt.member == missing && !attempt.why.empty()) {
      text += ", to which " + std::to_string(attempt.failures) + " connections failed, the last one as " + attempt.why;
    }
  }
  if (strangers_ != 0) {
    text += "; " + std::to_string(strangers_) + " connections of strangers were dropped meanwhile";
  }
  throw TransportError(SR_TIMEOUT, text, group_.members[missing]);
}

/// Waits until a socket is ready, or it is time for the next check.
void GroupRendezvous::wait() {
  std::vector<pollfd> watched;
  sdk::Deadline until = std::min(group_.deadline, in(stop_check_interval));
  if (accept_after_.passed()) {
    watched.push_back({listener_.get(), POLLIN, 0});
  } else {
    until = std::min(until, accept_after_);
  }
  for (const Incoming& incoming : incoming_) {
    watched.push_back({incoming.handshake.socket().get(), incoming.handshake.awaited(), 0});
  }
  for (const Attempt& attempt : attempts_) {
    if (attempt.handshake) {
      watched.push_back({attempt.handshake->socket().get(), attempt.handshake->awaited(), 0});
    } else if (attempt.socket) {
      watched.push_back({attempt.socket.get(), POLLOUT, 0});
    } else if (!proven_[attempt.member]) {
      until = std::min(until, attempt.next);
    }
  }
  // Rounded up. Otherwise the last millisecond would be polled in a busy loop.
  (void)::poll(watched.data(), watched.size(), static_cast<int>(std::chrono::ceil<milliseconds>(until.left()).count()));
}

void GroupRendezvous::attempt(Attempt& attempt) {
  if (proven_[attempt.member] || attempt.to.bytes == 0) {
    return;
  }
  if (!attempt.handshake && !attempt.socket) {
    begin(attempt);
  }
  if (attempt.socket) {
    pollfd connected = {attempt.socket.get(), POLLOUT, 0};
    if (::poll(&connected, 1, 0) != 1) {
      return;
    }
    int error = 0;
    socklen_t bytes = sizeof(error);
    (void)::getsockopt(attempt.socket.get(), SOL_SOCKET, SO_ERROR, &error, &bytes);
    if (error == ECONNREFUSED || error == ENETUNREACH || error == EHOSTUNREACH || error == ETIMEDOUT) {
      throw lost(attempt, error);
    }
    if (error != 0) {
      return try_again(attempt, std::strerror(error));
    }
    try {
      const ChannelBinding binding =
          binding_of_(group_.rank, attempt.member, own_end(attempt.socket), other_end(attempt.socket));
      attempt.handshake = Handshake::connecting(std::move(attempt.socket), secret_, group_.rank,
                                                [binding](std::uint32_t) { return binding; });
    } catch (const std::runtime_error& problem) {
      return try_again(attempt, problem.what());
    }
  }
  if (!attempt.handshake) {
    return;
  }
  switch (attempt.handshake->advance()) {
    case Handshake::State::under_way: break;
    case Handshake::State::refused: try_again(attempt, std::string(attempt.handshake->why())); break;
    case Handshake::State::proven:
      proven_[attempt.member] = std::move(attempt.handshake);
      attempt.handshake.reset();
      break;
  }
}

TransportError GroupRendezvous::lost(const Attempt& attempt, int error) const {
  return {SR_PEER_LOST, group_.name_of(attempt.member) + " is lost: " + std::strerror(error),
          group_.members[attempt.member]};
}

void GroupRendezvous::begin(Attempt& attempt) {
  if (!attempt.next.passed()) {
    return;
  }
  attempt.socket = Socket(::socket(attempt.to.address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!attempt.socket) {
    return try_again(attempt, std::strerror(errno));
  }
  if (::connect(attempt.socket.get(), reinterpret_cast<const sockaddr*>(&attempt.to.address), attempt.to.bytes) != 0 &&
      errno != EINPROGRESS) {
    const int error = errno;
    if (error == ECONNREFUSED || error == ENETUNREACH || error == EHOSTUNREACH) {
      throw lost(attempt, error);
    }
    try_again(attempt, std::strerror(error));
  }
}

void GroupRendezvous::try_again(Attempt& attempt, const std::string& why) {
  attempt.socket = Socket();
  attempt.handshake.reset();
  attempt.why = why;
  const auto pause = shortest_pause * (1 << std::min(attempt.failures, 10));
  ++attempt.failures;
  attempt.next = in(std::min(pause, longest_pause));
}

/// Accepts the connections that are pending at the listener.
void GroupRendezvous::accept_connections() {
  for (int accepted = 0; accepted < most_at_a_time && accept_after_.passed(); ++accepted) {
    Socket socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      return;
    }
    if (!socket && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)) {
      if (incoming_.empty()) {
        accept_after_ = in(accept_pause);
      } else {
        drop_oldest();
      }
      continue;
    }
    if (!socket) {
      continue;  // the peer has closed it already
    }
    Endpoint from;
    Endpoint to;
    try {
      from = other_end(socket);
      to = own_end(socket);
    } catch (const std::runtime_error&) {
      ++strangers_;
      continue;  // the peer has closed it already
    }
    Incoming incoming{Handshake::accepting(std::move(socket), secret_,
                                           [this, from, to](std::uint32_t member) {
                                             if (member <= group_.rank || member >= group_.size()) {
                                               throw std::runtime_error("it says that it is no member that connects");
                                             }
                                             return binding_of_(member, group_.rank, from, to);
                                           }),
                      in(nanoseconds(0))};
    if (advance(incoming)) {
      incoming_.push_back(std::move(incoming));
    }
    if (incoming_.size() > most_strangers + group_.size()) {
      drop_oldest();
    }
  }
}

/// Continues its handshake. Returns whether it is still in progress.
bool GroupRendezvous::advance(Incoming& incoming) {
  switch (incoming.handshake.advance()) {
    case Handshake::State::under_way: return true;
    case Handshake::State::refused: ++strangers_; return false;
    case Handshake::State::proven: break;
  }
  // A member that connects again did not learn that it was accepted. Its new connection replaces the old one.
  const std::uint32_t member = incoming.handshake.connector();
  proven_[member] = std::move(incoming.handshake);
  return false;
}

void GroupRendezvous::advance_incoming() {
  const sdk::Deadline oldest = in(-handshake_limit);
  std::deque<Incoming> remaining;
  for (Incoming& incoming : incoming_) {
    if (incoming.accepted < oldest) {
      ++strangers_;
    } else if (advance(incoming)) {
      remaining.push_back(std::move(incoming));
    }
  }
  incoming_ = std::move(remaining);
}

void GroupRendezvous::drop_oldest() {
  incoming_.pop_front();
  ++strangers_;
}

}  // namespace shardrun::gloo_transport
