#include "transports/tcp/rendezvous.h"

#include <openssl/evp.h>
#include <poll.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <stdexcept>
#include <system_error>
#include <utility>

namespace shardrun::tcp_transport {
namespace {

using sdk::TransportError;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;

/// How often a wait checks whether the job is ending.
constexpr milliseconds stop_check_interval(50);
/// A connection that has not proven its identity within this time is dropped.
constexpr std::chrono::seconds handshake_limit(10);
/// The pause before a failed connection is tried again: the first, and the longest.
constexpr milliseconds shortest_pause(5);
constexpr milliseconds longest_pause(200);
/// The pause before the listener accepts again, if no descriptor was free.
constexpr milliseconds accept_pause(20);
/// The largest number of connections accepted in a row. A flood of them must not starve those accepted before.
constexpr int most_at_a_time = 32;

sdk::Deadline in(nanoseconds time) { return sdk::Deadline::now() + time; }

std::string message_of(int error) { return std::generic_category().message(error); }

bool is_unreachable(int error) {
  return error == ECONNREFUSED || error == ENETUNREACH || error == EHOSTUNREACH || error == ETIMEDOUT;
}

}  // namespace

Rendezvous::Rendezvous(Settings settings, Socket listener)
    : settings_(std::move(settings)),
      client_(tls::psk_context(tls::End::client, settings_.secret)),
      server_(tls::psk_context(tls::End::server, settings_.secret)),
      listener_(std::move(listener)) {
  const std::uint32_t n = settings_.group.size();
  met_.outgoing.resize(n);
  met_.incoming.resize(n);
  // In this order, so that not all members begin with the same one.
  for (std::uint32_t distance = 1; distance < n; ++distance) {
    attempts_.emplace_back().member = (settings_.group.rank + distance) % n;
  }
}

/// The identity that the handshake proves, the same at both ends of a connection: the connecting member as plain text,
/// then a digest of all fields. Each field is written with its length, so that no two lists of fields give one text.
std::string Rendezvous::identity(std::uint32_t from, std::uint32_t to, const std::string& ends) const {
  std::string text;
  for (const std::string& field : {std::string("shardrun 1"), settings_.name, std::to_string(from), std::to_string(to),
                                   std::string(settings_.protection == Protection::tls ? "tls" : "none"), ends}) {
    text += std::to_string(field.size()) + ":" + field;
  }
  std::string digest(EVP_MAX_MD_SIZE, '\0');
  unsigned int bytes = 0;
  if (::EVP_Digest(text.data(), text.size(), reinterpret_cast<unsigned char*>(digest.data()), &bytes, ::EVP_sha256(),
                   nullptr) != 1) {
    throw TransportError(SR_INTERNAL, "OpenSSL computed no SHA-256");
  }
  digest.resize(bytes);
  return std::to_string(from) + " " + digest;
}

/// The addresses of a connection, if they are part of its identity. If bytes are not protected, the addresses keep a
/// relay from passing a handshake through two connections of its own and then changing what follows. If bytes are
/// protected, a network may translate addresses.
std::string Rendezvous::ends(const Endpoint& from, const Endpoint& to) const {
  return settings_.protection == Protection::none ? from.text() + " to " + to.text() : "";
}

/// The member that a connection's identity names, or this member's number if it names none that connects to this one.
std::uint32_t Rendezvous::sender_of(std::string_view offered) const {
  std::uint32_t member = 0;
  const auto [end, error] = std::from_chars(offered.data(), offered.data() + offered.size(), member);
  return error == std::errc() && member < settings_.group.size() ? member : settings_.group.rank;
}

Rendezvous::Met Rendezvous::run() {
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
  met_.strangers += pending_.size();
  return std::move(met_);
}

bool Rendezvous::is_complete() const {
  const auto count = [](const Connections& connections) {
    return std::ranges::count_if(connections, [](const auto& each) { return each != nullptr; });
  };
  return count(met_.outgoing) + count(met_.incoming) == 2 * std::ptrdiff_t{settings_.group.size()} - 2;
}

/// Requests the first address that is not known yet. Returns whether all addresses are known.
bool Rendezvous::find_address() {
  const auto attempt = std::ranges::find_if(attempts_, [](const Attempt& each) { return each.to.bytes == 0; });
  if (attempt == attempts_.end()) {
    return true;
  }
  if (const std::optional<std::string> address = settings_.address_of(attempt->member)) {
    try {
      attempt->to = endpoint_of(*address);
    } catch (const std::runtime_error& error) {
      throw TransportError(SR_INTERNAL, settings_.group.name_of(attempt->member) +
                                            " published an address that makes no sense: " + error.what());
    }
  }
  return false;
}

void Rendezvous::require_time() {
  if (settings_.host.aborted()) {
    throw TransportError(SR_ABORTED, "the job ends");
  }
  const sdk::GroupSpec& group = settings_.group;
  if (!group.deadline.passed()) {
    return;
  }
  std::uint32_t missing = 0;
  while (missing == group.rank || (met_.outgoing[missing] && met_.incoming[missing])) {
    ++missing;
  }
  std::string text = "past the deadline, waiting for " + group.name_of(missing);
  for (const Attempt& attempt : attempts_) {
    if (attempt.member == missing && !attempt.why.empty()) {
      text += ", to which " + std::to_string(attempt.failures) + " connections failed, the last one as " + attempt.why;
    }
  }
  if (met_.strangers != 0) {
    text += "; " + std::to_string(met_.strangers) + " connections of strangers were dropped meanwhile";
  }
  throw TransportError(SR_TIMEOUT, text, group.members[missing]);
}

/// Waits until a socket is ready, or it is time for the next check.
void Rendezvous::wait() {
  std::vector<pollfd> watched;
  sdk::Deadline until = std::min(settings_.group.deadline, in(stop_check_interval));
  if (accept_after_.passed()) {
    watched.push_back({listener_.get(), POLLIN, 0});
  } else {
    until = std::min(until, accept_after_);
  }
  for (const Incoming& incoming : pending_) {
    watched.push_back({incoming.connection->descriptor(), incoming.connection->awaited(), 0});
  }
  for (const Attempt& attempt : attempts_) {
    if (attempt.connection) {
      watched.push_back({attempt.connection->descriptor(), attempt.connection->awaited(), 0});
    } else if (attempt.socket) {
      watched.push_back({attempt.socket.get(), POLLOUT, 0});
    } else if (!met_.outgoing[attempt.member]) {
      until = std::min(until, attempt.next);
    }
  }
  // Rounded up; otherwise the last millisecond would be polled in a busy loop.
  (void)::poll(watched.data(), watched.size(), static_cast<int>(std::chrono::ceil<milliseconds>(until.left()).count()));
}

void Rendezvous::attempt(Attempt& attempt) {
  if (met_.outgoing[attempt.member] || attempt.to.bytes == 0) {
    return;
  }
  if (!attempt.connection && !attempt.socket) {
    begin(attempt);
  }
  if (attempt.socket && has_connected(attempt)) {
    try {
      const std::string both = ends(own_end(attempt.socket), other_end(attempt.socket));
      tls::Identity own = {.offered = identity(settings_.group.rank, attempt.member, both), .meant = {}};
      attempt.connection = std::make_unique<Connection>(
          std::move(attempt.socket), tls::psk_connection(client_, std::move(own)), settings_.protection);
    } catch (const std::system_error& error) {
      return try_again(attempt, error.what());
    }
  }
  if (!attempt.connection) {
    return;
  }
  switch (attempt.connection->advance()) {
    case Connection::State::under_way:
      if (attempt.begun < in(-handshake_limit)) {
        try_again(attempt, "its handshake took more than 10 s");
      }
      break;
    case Connection::State::refused: try_again(attempt, std::string(attempt.connection->why())); break;
    case Connection::State::proven: met_.outgoing[attempt.member] = std::move(attempt.connection); break;
  }
}

void Rendezvous::begin(Attempt& attempt) {
  if (!attempt.next.passed()) {
    return;
  }
  attempt.begun = in(nanoseconds(0));
  attempt.socket = Socket(::socket(attempt.to.address.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!attempt.socket) {
    return try_again(attempt, message_of(errno));
  }
  if (::connect(attempt.socket.get(), reinterpret_cast<const sockaddr*>(&attempt.to.address), attempt.to.bytes) != 0 &&
      errno != EINPROGRESS) {
    const int error = errno;
    if (is_unreachable(error)) {
      throw lost(attempt, error);
    }
    try_again(attempt, message_of(error));
  }
}

bool Rendezvous::has_connected(Attempt& attempt) {
  pollfd connected = {attempt.socket.get(), POLLOUT, 0};
  if (::poll(&connected, 1, 0) != 1) {
    return false;
  }
  int error = 0;
  socklen_t bytes = sizeof(error);
  (void)::getsockopt(attempt.socket.get(), SOL_SOCKET, SO_ERROR, &error, &bytes);
  if (is_unreachable(error)) {
    throw lost(attempt, error);
  }
  if (error != 0) {
    try_again(attempt, message_of(error));
  }
  return error == 0;
}

TransportError Rendezvous::lost(const Attempt& attempt, int error) const {
  return {SR_PEER_LOST, settings_.group.name_of(attempt.member) + " is lost: " + message_of(error),
          settings_.group.members[attempt.member]};
}

void Rendezvous::try_again(Attempt& attempt, const std::string& why) {
  attempt.why = why;
  attempt.socket = Socket();
  attempt.connection.reset();
  const auto pause = shortest_pause * (1 << std::min(attempt.failures, 10));
  ++attempt.failures;
  attempt.next = in(std::min(pause, longest_pause));
}

/// Accepts the connections that wait at the listener.
void Rendezvous::accept_connections() {
  for (int accepted = 0; accepted < most_at_a_time && accept_after_.passed(); ++accepted) {
    Socket socket(::accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!socket && (errno == EAGAIN || errno == EWOULDBLOCK)) {
      return;
    }
    if (!socket && (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM)) {
      if (pending_.empty()) {
        accept_after_ = in(accept_pause);
      } else {
        drop_oldest();
      }
      continue;
    }
    if (!socket) {
      continue;  // the other end has closed the connection already
    }
    try {
      Incoming incoming = heard(std::move(socket));
      if (advance(incoming)) {
        pending_.push_back(std::move(incoming));
      }
    } catch (const std::system_error&) {
      ++met_.strangers;  // the other end has closed the connection already
    }
    if (pending_.size() > most_strangers + settings_.group.size()) {
      drop_oldest();
    }
  }
}

Rendezvous::Incoming Rendezvous::heard(Socket socket) {
  const std::string both = ends(other_end(socket), own_end(socket));
  auto member = std::make_shared<std::uint32_t>(settings_.group.rank);
  tls::Identity other = {.offered = {}, .meant = [this, both, member](std::string_view offered) {
                           *member = sender_of(offered);
                           return *member != settings_.group.rank &&
                                  offered == identity(*member, settings_.group.rank, both);
                         }};
  return {std::make_unique<Connection>(std::move(socket), tls::psk_connection(server_, std::move(other)),
                                       settings_.protection),
          std::move(member), in(nanoseconds(0))};
}

/// Continues the handshake of an incoming connection. Returns whether it is still in progress.
bool Rendezvous::advance(Incoming& incoming) {
  switch (incoming.connection->advance()) {
    case Connection::State::under_way: return true;
    case Connection::State::refused: ++met_.strangers; return false;
    case Connection::State::proven: break;
  }
  // A member that connects again did not learn that it was accepted. Its new connection replaces the old one.
  met_.incoming[*incoming.member] = std::move(incoming.connection);
  return false;
}

void Rendezvous::advance_incoming() {
  const sdk::Deadline oldest = in(-handshake_limit);
  std::deque<Incoming> remaining;
  for (Incoming& incoming : pending_) {
    if (incoming.accepted < oldest) {
      ++met_.strangers;
    } else if (advance(incoming)) {
      remaining.push_back(std::move(incoming));
    }
  }
  pending_ = std::move(remaining);
}

void Rendezvous::drop_oldest() {
  pending_.pop_front();
  ++met_.strangers;
}

}  // namespace shardrun::tcp_transport
