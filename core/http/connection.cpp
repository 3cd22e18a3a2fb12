#include "core/http/connection.h"

#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/ip/address.hpp>
#include <boost/beast/core/string.hpp>
#include <boost/beast/http/error.hpp>
#include <boost/beast/http/rfc7230.hpp>

namespace shardrun::http {

namespace beast = boost::beast::http;
using boost::system::error_code;

namespace {

constexpr std::size_t most_header_bytes = std::size_t{16} << 10U;
constexpr std::size_t read_bytes = std::size_t{16} << 10U;
/// The most bytes that are kept of requests after the one in work, besides the bytes of one read.
constexpr std::size_t most_received_bytes = std::size_t{64} << 10U;
constexpr std::chrono::milliseconds lingering{1000};

/// The status that answers a request which cannot be parsed.
int status_of(error_code failed) {
  if (failed == beast::error::body_limit) {
    return 413;
  }
  return failed == beast::error::header_limit ? 431 : failed == beast::error::bad_version ? 505 : 400;
}

/// The reason of a status, such as "Not Found".
std::string_view reason_of(int status) {
  const auto text = beast::obsolete_reason(beast::int_to_status(static_cast<unsigned>(status)));
  return {text.data(), text.size()};
}

/// Whether a name is that of this host's loopback.
bool is_loopback(std::string_view host) {
  error_code failed;
  const auto address = boost::asio::ip::make_address(std::string(host), failed);
  return failed ? boost::beast::iequals(host, "localhost") : address.is_loopback();
}

/// The host of a Host field or an origin, without its port: "[::1]:8080" is "::1".
std::string host_of(std::string_view field) {
  if (const std::size_t scheme = field.find("://"); scheme != std::string_view::npos) {
    field.remove_prefix(scheme + 3);
  }
  if (field.starts_with('[')) {
    return std::string(field.substr(1, field.find(']') - 1));
  }
  return std::string(field.substr(0, field.find(':')));
}

/// Whether a field is missing, or names this host.
bool is_of_loopback(const Request& request, beast::field name) {
  const auto value = request.fields[name];
  return value.empty() || is_loopback(host_of({value.data(), value.size()}));
}

}  // namespace

Response text_response(int status, std::string text) {
  return {.status = status, .type = "text/plain; charset=utf-8", .body = std::move(text)};
}

bool names_loopback(const Request& request) {
  return is_of_loopback(request, beast::field::host) && is_of_loopback(request, beast::field::origin);
}

Connection::Connection(boost::asio::io_context& io, std::unique_ptr<Stream> stream, std::string peer,
                       const ConnectionSettings& settings, std::size_t& bodies, Events events)
    : stream_(std::move(stream)),
      peer_(std::move(peer)),
      settings_(settings),
      bodies_(bodies),
      events_(std::move(events)),
      deadline_(io),
      stall_(io),
      buffer_(read_bytes, '\0') {}

void Connection::arm(boost::asio::steady_timer& timer, std::chrono::milliseconds time, std::function<void()> late) {
  timer.expires_after(time);
  timer.async_wait([self = shared_from_this(), late = std::move(late)](error_code stopped) {
    if (!stopped && self->is_open_) {
      late();
    }
  });
}

void Connection::start() {
  arm(deadline_, settings_.receiving, [this] { close(); });
  stream_->handshake([self = shared_from_this()](error_code failed, std::size_t) {
    if (failed || !self->is_open_) {
      return self->close();
    }
    self->begin_request();
  });
}

/// Waits for a request, or parses one that has arrived after the last one.
void Connection::begin_request() {
  parser_.emplace();
  parser_->header_limit(most_header_bytes);
  parser_->body_limit(settings_.most_body_bytes);
  request_ = {};
  status_ = 0;
  sent_bytes_ = 0;
  is_head_ = false;
  is_in_work_ = false;
  is_answered_ = false;
  if (received_.empty()) {
    arm(deadline_, settings_.idle, [this] { close(); });
    read();
  } else {
    take("");
  }
}

void Connection::read() {
  // Reading goes on while a request is answered, because that is how a client that leaves is noticed.
  if (is_reading_ || !is_open_ || (is_answered_ && received_.size() >= most_received_bytes)) {
    return;
  }
  is_reading_ = true;
  stream_->read_some(boost::asio::buffer(buffer_), [self = shared_from_this()](error_code failed, std::size_t size) {
    self->is_reading_ = false;
    if (failed || !self->is_open_) {
      return self->close();
    }
    self->moved_at_ = std::chrono::steady_clock::now();
    self->take(std::string_view(self->buffer_).substr(0, size));
  });
}

void Connection::take(std::string_view bytes) {
  if (is_lingering_) {
    return read();
  }
  if (is_in_work_ && !is_answered_ && received_.size() >= most_received_bytes) {
    return close();
  }
  const bool begins = received_.empty() && !is_in_work_ && !parser_->got_some();
  received_ += bytes;
  if (!is_in_work_) {
    if (begins || bytes.empty()) {
      asked_at_ = std::chrono::steady_clock::now();
      arm(deadline_, settings_.receiving, [this] {
        keeps_alive_ = false;
        refuse(408, "the request was not complete in time");
      });
    }
    parse();
  }
  read();
}

void Connection::count_body(std::size_t bytes) {
  bodies_ += bytes;
  bodies_ -= body_;
  body_ = bytes;
}

void Connection::parse() {
  while (!received_.empty() && !is_in_work_) {
    error_code failed;
    const bool had_header = parser_->is_header_done();
    const std::size_t used = parser_->put(boost::asio::buffer(received_), failed);
    received_.erase(0, used);
    if (failed == beast::error::need_more) {
      if (received_.size() > most_header_bytes) {  // the parser bounds the header alone
        keeps_alive_ = false;
        refuse(431, fmt::format("extensions of a chunk, or trailers, have more than {} bytes", most_header_bytes));
      }
      return;
    }
    if (failed) {
      keeps_alive_ = false;
      return refuse(status_of(failed), failed == beast::error::body_limit
                                           ? fmt::format("the body has more than {} bytes", settings_.most_body_bytes)
                                           : fmt::format("the request cannot be read: {}", failed.message()));
    }
    if (!had_header && parser_->is_header_done() && !admit_header()) {
      return;
    }
    count_body(parser_->get().body().size());
    if (bodies_ > settings_.most_bodies_bytes) {
      keeps_alive_ = false;
      return refuse(503, "too many large requests are being received: try again later");
    }
    if (parser_->is_done()) {
      deadline_.cancel();
      Request asked = request_;
      asked.body = std::move(parser_->get().body());
      count_body(0);
      is_in_work_ = true;
      return events_.asked(shared_from_this(), std::move(asked));
    }
    if (used == 0) {
      return;
    }
  }
}

bool Connection::admit_header() {
  const auto& head = parser_->get();
  request_.method = std::string(head.method_string());
  const std::string_view target(head.target().data(), head.target().size());
  request_.path = std::string(target.substr(0, target.find('?')));
  request_.fields = head.base();
  is_head_ = request_.method == "HEAD";
  keeps_alive_ = keeps_alive_ && head.keep_alive();
  is_chunked_ = head.version() >= 11;
  // A proxy before this server could find another end of the request, or another host, in the cases below.
  const bool has_coding = head.count(beast::field::transfer_encoding) > 0;
  if (has_coding && (!parser_->chunked() || head.count(beast::field::content_length) > 0)) {
    keeps_alive_ = false;
    refuse(400, "expected Transfer-Encoding: chunked, or Content-Length in its place");
    return false;
  }
  if (is_chunked_ && head.count(beast::field::host) != 1) {
    keeps_alive_ = false;
    refuse(400, fmt::format("expected one field Host, found {}", head.count(beast::field::host)));
    return false;
  }
  if (const std::optional<Response> refused = settings_.admit(request_)) {
    keeps_alive_ = keeps_alive_ && parser_->is_done();
    is_in_work_ = true;
    respond(*refused);
    return false;
  }
  if (boost::beast::iequals(head[beast::field::expect], "100-continue") && !parser_->is_done()) {
    send("HTTP/1.1 100 Continue\r\n\r\n");
  }
  parser_->eager(true);
  return true;
}

void Connection::refuse(int status, std::string message) {
  if (is_in_work_) {
    return;
  }
  is_in_work_ = true;
  respond(settings_.refusal(status, std::move(message)));
}

void Connection::respond(const Response& response) {
  status_ = response.status;
  std::string head = fmt::format(
      "HTTP/1.1 {} {}\r\nContent-Type: {}\r\nX-Content-Type-Options: nosniff\r\nContent-Length: {}\r\nConnection: "
      "{}\r\n",
      response.status, reason_of(response.status), response.type, response.body.size(),
      keeps_alive_ ? "keep-alive" : "close");
  for (const auto& [name, value] : response.fields) {
    head += fmt::format("{}: {}\r\n", name, value);
  }
  send(head + "\r\n" + (is_head_ ? "" : response.body));
  end_response();
}

void Connection::begin_events() {
  status_ = 200;
  is_streaming_ = true;
  keeps_alive_ = keeps_alive_ && is_chunked_;
  send(
      fmt::format("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nCache-Control: no-cache\r\n"
                  "X-Accel-Buffering: no\r\n{}Connection: {}\r\n\r\n",
                  is_chunked_ ? "Transfer-Encoding: chunked\r\n" : "", keeps_alive_ ? "keep-alive" : "close"));
}

void Connection::send_event(std::string_view data) {
  if (!is_open_ || !is_streaming_) {
    return;
  }
  const std::string event = fmt::format("data: {}\n\n", data);
  send(is_chunked_ ? fmt::format("{:x}\r\n{}\r\n", event.size(), event) : event);
  if (unsent_bytes_ > settings_.most_unsent_bytes) {
    close();  // the client reads more slowly than the answer comes
  }
}

void Connection::end_events() {
  if (!is_open_ || !is_streaming_) {
    return;
  }
  is_streaming_ = false;
  if (is_chunked_) {
    send("0\r\n\r\n");
  }
  end_response();
}

/// Called when the response is complete. Its last bytes are in unsent_. write() begins the next request after them.
void Connection::end_response() {
  gone_ = {};
  if (!is_open_) {
    return;
  }
  events_.answered(request_, peer_, status_, sent_bytes_, std::chrono::steady_clock::now() - asked_at_);
  is_answered_ = true;
  if (!keeps_alive_) {
    is_lingering_ = true;
    count_body(0);
    received_.clear();
    deadline_.cancel();
  }
}

void Connection::send(std::string bytes) {
  if (!is_open_) {
    return;
  }
  unsent_bytes_ += bytes.size();
  sent_bytes_ += bytes.size();
  unsent_.push_back(std::move(bytes));
  write();
}

void Connection::write() {
  if (is_writing_ || !is_open_) {
    return;
  }
  if (unsent_.empty()) {
    if (is_answered_) {
      keeps_alive_ ? begin_request() : linger();
    }
    return;
  }
  is_writing_ = true;
  if (unsent_.size() > 1 && written_ == 0) {
    std::string all;
    for (const std::string& each : unsent_) {
      all += each;
    }
    unsent_.clear();
    unsent_.push_back(std::move(all));
  }
  arm(stall_, settings_.sending, [this] { close(); });
  const auto bytes = boost::asio::buffer(unsent_.front()) + written_;
  stream_->write_some(bytes, [self = shared_from_this()](error_code failed, std::size_t size) {
    self->is_writing_ = false;
    self->stall_.cancel();
    if (failed || !self->is_open_) {
      return self->close();
    }
    self->moved_at_ = std::chrono::steady_clock::now();
    self->unsent_bytes_ -= size;
    self->written_ += size;
    if (self->written_ == self->unsent_.front().size()) {
      self->written_ = 0;
      self->unsent_.pop_front();
    }
    self->write();
  });
}

/// Lets the client read the last response. To close at once would reset the connection if the client is still sending.
void Connection::linger() {
  is_lingering_ = true;
  stream_->end_sending(!parser_->is_done(), [self = shared_from_this()](error_code, std::size_t) {});
  arm(deadline_, lingering, [this] { close(); });
  read();
}

void Connection::close_when_idle() {
  keeps_alive_ = false;
  if (is_open_ && !is_in_work_ && unsent_.empty() && (!parser_ || !parser_->got_some())) {
    close();
  }
}

void Connection::close() {
  if (!std::exchange(is_open_, false)) {
    return;
  }
  const std::shared_ptr<Connection> self = shared_from_this();
  stream_->close();
  deadline_.cancel();
  stall_.cancel();
  count_body(0);
  if (is_in_work_ && !is_answered_) {
    events_.answered(request_, peer_, 0, sent_bytes_, std::chrono::steady_clock::now() - asked_at_);
  }
  if (const auto gone = std::exchange(gone_, {})) {
    gone();
  }
  events_.closed(*this);
}

}  // namespace shardrun::http
