#include "core/launch/connection.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <boost/asio/buffer.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/write.hpp>
#include <utility>
#include <vector>

namespace shardrun::launch {
namespace {

using boost::system::error_code;

constexpr std::size_t version_and_type_bytes = 2;

std::string message_of(const error_code& error) {
  return error == boost::asio::error::eof ? "it was closed by the other side" : error.message();
}

}  // namespace

FrameConnection::FrameConnection(boost::asio::ip::tcp::socket socket, const TlsContext& tls)
    : socket_(std::move(socket)), tls_(tls) {
  close_on_exec(socket_.native_handle());
  error_code ignored;
  socket_.set_option(boost::asio::ip::tcp::no_delay(true), ignored);
}

void FrameConnection::start(Events events) {
  events_ = std::move(events);
  boost::asio::post(socket_.get_executor(), [self = shared_from_this()] { self->take(0); });
}

void FrameConnection::read() {
  socket_.async_read_some(boost::asio::buffer(read_),
                          [self = shared_from_this()](const error_code& error, std::size_t size) {
                            if (error || !self->open_) {
                              return self->ended(message_of(error));
                            }
                            self->has_heard_ = true;
                            self->take(size);
                          });
}

/// Processes the first `size` bytes of `read_`, and continues reading.
void FrameConnection::take(std::size_t size) {
  const bool had_proved = tls_.has_proved();
  std::string failed;
  try {
    tls_.receive({read_.data(), size}, received_);
  } catch (const ProtocolError& error) {
    failed = error.message();
  }
  if (!had_proved && tls_.has_proved() && failed.empty() && events_.proved) {
    call(events_.proved);
  }
  transmit({});  // sends what the handshake has written, or an alert
  peer_gone_ = peer_gone_ || !failed.empty();
  deliver();
  if (open_ && failed.empty()) {
    read();
  } else {
    ended(failed);
  }
}

/// Delivers the complete frames that have arrived.
void FrameConnection::deliver() {
  std::size_t delivered = 0;
  while (open_ && received_.size() - delivered >= frame_header_bytes) {
    const std::string_view rest = std::string_view(received_).substr(delivered);
    const std::size_t length = read_u32(rest.substr(0, frame_header_bytes));
    if (length < version_and_type_bytes || length > max_frame_bytes) {
      return ended(fmt::format("it announced a frame of {} bytes, of {} to {}", length, version_and_type_bytes,
                               max_frame_bytes));
    }
    if (rest.size() < frame_header_bytes + length) {
      break;
    }
    const std::string_view frame = rest.substr(frame_header_bytes, length);
    if (const auto version = static_cast<std::uint8_t>(frame[0]); version != protocol_version) {
      return ended(fmt::format("it speaks version {} of the protocol, not {}", version, protocol_version));
    }
    call([&] { events_.frame(static_cast<FrameType>(frame[1]), frame.substr(version_and_type_bytes)); });
    delivered += frame_header_bytes + length;
  }
  received_.erase(0, delivered);
}

void FrameConnection::call(const std::function<void()>& callback) {
  std::string refused;
  try {
    callback();
  } catch (const ProtocolError& error) {
    refused = error.message();
  }
  if (next_events_) {
    events_ = *std::exchange(next_events_, std::nullopt);
  }
  if (!refused.empty()) {
    ended(refused);
  }
}

/// Destroys the callbacks, unless call() has replaced them. close() does not, because a callback can be its caller.
void FrameConnection::ended(const std::string& why) {
  const Events events = std::exchange(events_, {});
  if (open_) {
    close();
    events.closed(why);
  }
}

void FrameConnection::close() {
  open_ = false;
  error_code ignored;
  socket_.close(ignored);
}

void FrameConnection::send(const std::string& frame, std::function<void()> written) {
  if (!open_ || peer_gone_) {
    if (written) {
      written();
    }
    return;
  }
  tls_.send(frame);
  transmit(std::move(written));
}

void FrameConnection::transmit(std::function<void()> written) {
  std::string bytes = tls_.take_output();
  if (bytes.empty() || !open_ || peer_gone_) {
    return;
  }
  outgoing_.push_back({std::move(bytes), std::move(written)});
  if (outgoing_.size() == 1) {
    write_front();
  }
}

void FrameConnection::write_front() {
  boost::asio::async_write(socket_, boost::asio::buffer(outgoing_.front().bytes),
                           [self = shared_from_this()](const error_code& error, std::size_t) {
                             self->peer_gone_ = self->peer_gone_ || error;
                             std::vector<Outgoing> done;
                             do {
                               done.push_back(std::move(self->outgoing_.front()));
                               self->outgoing_.pop_front();
                             } while (self->peer_gone_ && !self->outgoing_.empty());
                             if (!self->outgoing_.empty()) {
                               self->write_front();
                             }
                             // The callbacks come last, because one that sends starts a write if none is in progress.
                             for (const Outgoing& each : done) {
                               if (each.written) {
                                 each.written();
                               }
                             }
                           });
}

void close_on_exec(int descriptor) { ::fcntl(descriptor, F_SETFD, FD_CLOEXEC); }

}  // namespace shardrun::launch
