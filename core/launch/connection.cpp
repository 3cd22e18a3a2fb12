#include "core/launch/connection.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <boost/asio/buffer.hpp>
#include <boost/asio/read.hpp>
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

FrameConnection::FrameConnection(boost::asio::ip::tcp::socket socket, std::size_t max_bytes)
    : socket_(std::move(socket)), max_bytes_(max_bytes) {
  close_on_exec(socket_.native_handle());
  error_code ignored;
  socket_.set_option(boost::asio::ip::tcp::no_delay(true), ignored);
}

void FrameConnection::seal(const Digest& outgoing, const Digest& incoming) {
  sealing_.emplace(outgoing);
  opening_.emplace(incoming);
}

void FrameConnection::start(Events events) {
  events_ = std::move(events);
  read_header();
}

void FrameConnection::read_header() {
  boost::asio::async_read(
      socket_, boost::asio::buffer(header_), [self = shared_from_this()](const error_code& error, std::size_t) {
        if (error || !self->open_) {
          return self->ended(message_of(error));
        }
        self->has_heard_ = true;
        const std::size_t length = read_u32({self->header_.data(), self->header_.size()});
        const std::size_t least = version_and_type_bytes + self->seal_bytes();
        const std::size_t most = self->max_bytes_ + self->seal_bytes();
        if (length < least || length > most) {
          return self->ended(fmt::format("it announced a frame of {} bytes, of {} to {}", length, least, most));
        }
        self->read_body(length);
      });
}

void FrameConnection::read_body(std::size_t length) {
  body_.resize(length);
  boost::asio::async_read(socket_, boost::asio::buffer(body_),
                          [self = shared_from_this()](const error_code& error, std::size_t) {
                            if (error || !self->open_) {
                              return self->ended(message_of(error));
                            }
                            self->deliver();
                          });
}

void FrameConnection::deliver() {
  if (opening_) {
    std::optional<std::string> opened = opening_->open({header_.data(), header_.size()}, body_);
    if (!opened) {
      return ended("a frame does not have the tag of this connection: it was sent or changed by somebody else");
    }
    body_ = *std::move(opened);
  }
  const auto version = static_cast<std::uint8_t>(body_[0]);
  if (version != protocol_version) {
    return ended(fmt::format("it speaks version {} of the protocol, not {}", version, protocol_version));
  }
  std::string refused;
  try {
    events_.frame(static_cast<FrameType>(body_[1]), std::string_view(body_).substr(version_and_type_bytes));
  } catch (const ProtocolError& error) {
    refused = error.message();
  }
  if (next_events_) {
    events_ = *std::exchange(next_events_, std::nullopt);
  }
  if (!refused.empty()) {
    return ended(refused);
  }
  if (open_) {
    read_header();
  } else {
    events_ = {};
  }
}

/// The callbacks are destroyed here, or in deliver(), but never in close(), which one of them may have called.
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

void FrameConnection::send(std::string frame, std::function<void()> written) {
  if (!open_ || peer_gone_) {
    if (written) {
      written();
    }
    return;
  }
  if (sealing_) {
    const std::string_view message = std::string_view(frame).substr(frame_header_bytes);
    std::string sealed = frame_header(message.size() + Cipher::tag_bytes);
    sealed += sealing_->seal(sealed, message);
    frame = std::move(sealed);
  }
  unsent_bytes_ += frame.size();
  outgoing_.push_back({std::move(frame), std::move(written)});
  if (outgoing_.size() == 1) {
    write_front();
  }
}

void FrameConnection::write_front() {
  boost::asio::async_write(socket_, boost::asio::buffer(outgoing_.front().frame),
                           [self = shared_from_this()](const error_code& error, std::size_t) {
                             self->peer_gone_ = static_cast<bool>(error);
                             std::vector<Outgoing> done;
                             do {
                               done.push_back(std::move(self->outgoing_.front()));
                               self->outgoing_.pop_front();
                               self->unsent_bytes_ -= done.back().frame.size();
                             } while (self->peer_gone_ && !self->outgoing_.empty());
                             if (!self->outgoing_.empty()) {
                               self->write_front();
                             }
                             // Last, because a callback may send, which starts a write if none is in progress.
                             for (const Outgoing& each : done) {
                               if (each.written) {
                                 each.written();
                               }
                             }
                           });
}

void close_on_exec(int descriptor) { ::fcntl(descriptor, F_SETFD, FD_CLOEXEC); }

}  // namespace shardrun::launch
