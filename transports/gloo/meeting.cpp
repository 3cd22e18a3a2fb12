#include "transports/gloo/meeting.h"

#include <poll.h>
#include <shardrun/sdk/worker.hpp>

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

/// How often a wait looks whether the job is to end.
constexpr milliseconds stop_check_interval(50);
/// A visitor that has not proved itself by then is dropped.
constexpr std::chrono::seconds handshake_limit(10);
/// Until a connection that failed is tried again, at first and at most.
constexpr milliseconds shortest_pause(5);
constexpr milliseconds longest_pause(200);
/// Until the listener is asked again where there was no descriptor for a connection.
constexpr milliseconds deaf(20);
/// Connections that are taken at a time, so that a flood of them does not keep those from being heard that came before.
constexpr int most_at_a_time = 32;

std::int64_t in(nanoseconds time) { return sdk::steady_now() + time.count(); }

}  // namespace

Meeting::Meeting(const sdk::GroupSpec& group, const sdk::TransportHost& host, const Key& secret, SubjectOf subject_of,
                 AddressOf address_of, Socket listener)
    : group_(group),
      host_(host),
      secret_(secret),
      subject_of_(std::move(subject_of)),
      address_of_(std::move(address_of)),
      listener_(std::move(listener)),
      proven_(group.size()) {
  for (std::uint32_t member = 0; member < group.rank; ++member) {
    attempts_.emplace_back().member = member;
  }
}

/// Asks for the first address that is not known yet. Whether all are known.
bool Meeting::find_address() {
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

std::vector<std::optional<Handshake>> Meeting::run() {
  while (!is_complete()) {
    require_time();
    for (Attempt& each : attempts_) {
      attempt(each);
    }
    hear_visitors();
    welcome();
    if (!is_complete() && find_address()) {
      wait();
    }
  }
  strangers_ += visitors_.size();
  visitors_.clear();
  return std::move(proven_);
}

bool Meeting::is_complete() const {
  return static_cast<std::size_t>(std::ranges::count_if(
             proven_, [](const std::optional<Handshake>& proven) { return proven.has_value(); })) == group_.size() - 1;
}

void Meeting::require_time() {
  if (host_.aborted()) {
    throw TransportError(SR_ABORTED, "the job ends");
  }
  if (sdk::steady_now() < group_.deadline) {
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

/// Until something can be done, or there is something else to look at.
void Meeting::wait() {
  std::vector<pollfd> watched;
  std::int64_t until = std::min(group_.deadline, in(stop_check_interval));
  if (sdk::steady_now() >= deaf_until_) {
    watched.push_back({listener_.get(), POLLIN, 0});
  } else {
    until = std::min(until, deaf_until_);
  }
  for (const Visitor& visitor : visitors_) {
    watched.push_back({visitor.handshake.socket().get(), visitor.handshake.awaited(), 0});
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
  const std::int64_t left = std::max<std::int64_t>(until - sdk::steady_now(), 0);
  // Rounded up, so that it is not looked again and again in the last of the milliseconds.
  const auto timeout = static_cast<int>((left + 999'999) / 1'000'000);
  (void)::poll(watched.data(), watched.size(), timeout);
}

void Meeting::attempt(Attempt& attempt) {
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
      const Subject subject =
          subject_of_(group_.rank, attempt.member, own_end(attempt.socket), other_end(attempt.socket));
      attempt.handshake = Handshake::connecting(std::move(attempt.socket), secret_, group_.rank,
                                                [subject](std::uint32_t) { return subject; });
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

TransportError Meeting::lost(const Attempt& attempt, int error) const {
  return {SR_PEER_LOST, group_.name_of(attempt.member) + " is lost: " + std::strerror(error),
          group_.members[attempt.member]};
}

void Meeting::begin(Attempt& attempt) {
  if (sdk::steady_now() < attempt.next) {
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

void Meeting::try_again(Attempt& attempt, const std::string& why) {
  attempt.socket = Socket();
  attempt.handshake.reset();
  attempt.why = why;
  const auto pause = shortest_pause * (1 << std::min(attempt.failures, 10));
  ++attempt.failures;
  attempt.next = in(std::min(pause, longest_pause));
}

/// Lets in those who have come to the listener.
void Meeting::welcome() {
  for (int taken = 0; taken < most_at_a_time && sdk::steady_now() >= deaf_until_; ++taken) {
    Socket socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      return;
    }
    if (!socket && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)) {
      if (visitors_.empty()) {
        deaf_until_ = in(deaf);
      } else {
        drop_oldest();
      }
      continue;
    }
    if (!socket) {
      continue;  // it is gone again
    }
    Endpoint from;
    Endpoint to;
    try {
      from = other_end(socket);
      to = own_end(socket);
    } catch (const std::runtime_error&) {
      ++strangers_;
      continue;  // the same
    }
    Visitor visitor{Handshake::accepting(std::move(socket), secret_,
                                         [this, from, to](std::uint32_t member) {
                                           if (member <= group_.rank || member >= group_.size()) {
                                             throw std::runtime_error("it says that it is no member that connects");
                                           }
                                           return subject_of_(member, group_.rank, from, to);
                                         }),
                    in(nanoseconds(0))};
    if (hear(visitor)) {
      visitors_.push_back(std::move(visitor));
    }
    if (visitors_.size() > most_strangers + group_.size()) {
      drop_oldest();
    }
  }
}

/// Whether it is to be heard again.
bool Meeting::hear(Visitor& visitor) {
  switch (visitor.handshake.advance()) {
    case Handshake::State::under_way: return true;
    case Handshake::State::refused: ++strangers_; return false;
    case Handshake::State::proven: break;
  }
  // A member that comes again did not hear that it was accepted.
  const std::uint32_t member = visitor.handshake.connector();
  proven_[member] = std::move(visitor.handshake);
  return false;
}

void Meeting::hear_visitors() {
  const std::int64_t oldest = in(-handshake_limit);
  std::deque<Visitor> staying;
  for (Visitor& visitor : visitors_) {
    if (visitor.came < oldest) {
      ++strangers_;
    } else if (hear(visitor)) {
      staying.push_back(std::move(visitor));
    }
  }
  visitors_ = std::move(staying);
}

void Meeting::drop_oldest() {
  visitors_.pop_front();
  ++strangers_;
}

}  // namespace shardrun::gloo_transport
