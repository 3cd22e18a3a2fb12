#include "core/launch/store_client.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/ip/address.hpp>
#include <utility>

namespace shardrun::launch {
namespace {

using boost::asio::ip::tcp;
using boost::system::error_code;

constexpr std::chrono::milliseconds longest_connect_pause{500};
constexpr std::chrono::milliseconds longest_unproved_pause{2000};
/// How long an address may take to answer before the next of several is tried.
constexpr std::chrono::milliseconds longest_attempt_of_several{5000};

std::vector<std::string> divided(std::string_view list) {
  std::vector<std::string> parts;
  for (std::size_t at = 0; at <= list.size();) {
    const std::size_t end = std::min(list.find(',', at), list.size());
    parts.emplace_back(list.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

}  // namespace

StoreConnector::StoreConnector(boost::asio::io_context& io, StoreConnectorSettings settings,
                               StoreConnectorEvents events)
    : settings_(std::move(settings)),
      addresses_(divided(settings_.address)),
      events_(std::move(events)),
      io_(io),
      tls_(tls_context(tls::End::client, settings_.token)),
      timer_(io) {}

StoreConnector::~StoreConnector() {
  if (connection_) {
    connection_->close();
  }
}

void StoreConnector::connect() {
  auto socket = std::make_shared<tcp::socket>(io_);
  error_code error;
  const std::string& address = addresses_[attempts_++ % addresses_.size()];
  const tcp::endpoint store(boost::asio::ip::make_address(address, error), settings_.port);
  if (!error) {
    socket->open(store.protocol(), error);
  }
  if (error) {
    return connect_later(error.message());
  }
  close_on_exec(socket->native_handle());
  if (addresses_.size() > 1) {
    timer_.expires_after(longest_attempt_of_several);
    timer_.async_wait([socket](const error_code& cancelled) {
      if (!cancelled) {
        error_code ignored;
        socket->close(ignored);
      }
    });
  }
  socket->async_connect(store, [this, socket, address](const error_code& failed) {
    timer_.cancel();
    if (failed) {
      return connect_later(addresses_.size() == 1 ? failed.message()
                                                  : fmt::format("{}: {}", address, failed.message()));
    }
    error_code unknown;
    const tcp::endpoint own = socket->local_endpoint(unknown);
    own_address_ = own.address().to_string();
    shake_hands(std::make_shared<FrameConnection>(std::move(*socket), tls_));
  });
}

void StoreConnector::connect_later(const std::string& why) { pause_before_connecting(why, longest_connect_pause); }

void StoreConnector::pause_before_connecting(const std::string& why, std::chrono::milliseconds longest_pause) {
  if (const auto abandoned = std::exchange(connection_, nullptr)) {
    abandoned->close();
  }
  events_.failed(why);
  timer_.expires_after(pause_);
  pause_ = std::min(2 * pause_, longest_pause);
  timer_.async_wait([this](const error_code& cancelled) {
    if (!cancelled) {
      connect();
    }
  });
}

/// The listener must prove in time that it knows the token.
void StoreConnector::shake_hands(std::shared_ptr<FrameConnection> connection) {
  connection_ = std::move(connection);
  connection_->start({.proved =
                          [this] {
                            timer_.cancel();
                            events_.proved(std::exchange(connection_, nullptr), own_address_);
                          },
                      .frame = {},
                      .closed = [this](const std::string& why) { not_proved(why); }});
  timer_.expires_after(settings_.proof_timeout);
  timer_.async_wait([this, met = connection_](const error_code& cancelled) {
    if (!cancelled && met == connection_) {
      // The listener may be the launcher, which is busy. So try again.
      connect_later(unproved(fmt::format("it did not answer within {} ms", settings_.proof_timeout.count())));
    }
  });
}

std::string StoreConnector::unproved(const std::string& why) const {
  return fmt::format("what listens at {} port {} has not proved that it knows this run's token: {}", settings_.address,
                     settings_.port, why);
}

/// Another program may listen there until the launcher does. A peer that closes the connection without sending anything
/// does not count as a wrong answer: the launcher itself drops the oldest connections while many arrive at once.
void StoreConnector::not_proved(const std::string& why) {
  const std::string what = unproved(why);
  if (!connection_->has_heard()) {
    return connect_later(what);
  }
  const auto now = std::chrono::steady_clock::now();
  first_unproved_ = unproved_ == 0 ? now : first_unproved_;
  ++unproved_;
  if (settings_.most_unproved == 0) {
    return connect_later(what);
  }
  if (unproved_ < settings_.most_unproved || now - first_unproved_ < settings_.shortest_of_unproved) {
    return pause_before_connecting(what, longest_unproved_pause);
  }
  events_.refused(
      fmt::format("{} (of {} times; is SHARDRUN_TOKEN the same there, or TMPDIR, where no token "
                  "is set, and is it rank 0 of this job?)",
                  what, unproved_));
}

}  // namespace shardrun::launch
